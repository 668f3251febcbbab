#!/usr/bin/env python3
"""The page as a browser shows it: Chromium without a screen types, and reads what was reused.

    page.py SERVER MODEL

It needs Debian's chromium and chromium-driver, and is skipped without them.
"""
import atexit
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import time

import running
from running import check

SERVER, MODEL = sys.argv[1:3]
ENTER, SHIFT = "\ue007", "\ue008"


class Browser:
    """A window, driven by W3C WebDriver."""

    base = None

    def __init__(self, dark=False):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL)
        atexit.register(self.close)  # nothing stays behind a failure
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=900,700"]
        if dark:
            flags.append("--force-dark-mode")
        for _ in range(100):
            try:
                made = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
                    "browserName": "chrome", "goog:chromeOptions": {"args": flags},
                    "goog:loggingPrefs": {"browser": "ALL"}}}})
                break
            except OSError:
                time.sleep(0.1)
        self.base = "/session/" + made["sessionId"]

    def ask(self, method, path, body=None):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        link.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        got = json.loads(link.getresponse().read())["value"]
        link.close()
        if isinstance(got, dict) and "error" in got:
            raise SystemExit(f"FAILED: the browser says {got['error']}: {got['message'][:300]}")
        return got

    def do(self, what, **body):
        return self.ask("POST", f"{self.base}/{what}", body)

    def run(self, script, *arguments):
        return self.do("execute/sync", script=script, args=list(arguments))

    def press(self, *keys):
        """Into whatever has the focus, as a keyboard does."""
        pressed = []
        for key in keys:
            pressed += [{"type": "keyDown", "value": key}] + ([] if key == SHIFT else [{"type": "keyUp", "value": key}])
        pressed += [{"type": "keyUp", "value": SHIFT}] * (SHIFT in keys)
        self.do("actions", actions=[{"type": "key", "id": "keys", "actions": pressed}])

    def wait(self, script, words, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if got := self.run(script):
                return got
            time.sleep(0.05)
        raise SystemExit(f"FAILED: {words}")

    def log(self):
        return [e for e in self.do("se/log", type="browser") if e["level"] == "SEVERE"]

    def close(self):
        if self.driver.poll() is None:
            if self.base:
                self.ask("DELETE", self.base)
            self.driver.terminate()
            self.driver.wait()


TURNS = "return [...document.querySelectorAll('#talk .cost')].filter(e => e.tagName === 'DIV').map(e => e.textContent)"


def says(at, page, number, text):
    """Types a message and Enter. Returns the figures of the turn: tokens of the prompt, reused, recomputed, fresh."""
    page.press(*text, ENTER)
    page.wait(f"return document.querySelectorAll('.turn').length === {2 * number}", "the turn is shown")
    page.wait("return document.getElementById('stop').disabled", "the answer ends")
    cost = page.wait(TURNS + f"[{number - 1}]", "the turn's figures are shown")
    found = re.match(r"first token after ([\d.]+) ms; (\d+) tokens: (\d+) reused, (\d+) recomputed, (\d+) fresh; (\d+) said",
                     cost)
    check(found and float(found[1]) > 0, cost)
    whole, reused, recomputed, fresh = (int(found[i]) for i in range(2, 6))
    check(whole == reused + recomputed + fresh and int(found[6]) > 0, cost)
    coloured = page.run("const last = [...document.querySelectorAll('.tokens')].pop(); return ['reused', 'recomputed', "
                        "'fresh'].map(c => last.querySelectorAll('.' + c).length)")
    check(coloured == [reused, recomputed, fresh], (coloured, cost))
    answer = page.run("return document.querySelectorAll('.turn')[arguments[0]].children[1].textContent", 2 * number - 1)
    check(answer, "the model has said something")
    return whole, reused, fresh, answer


def main():
    if not shutil.which("chromedriver"):
        print("SKIPPED: there is no chromedriver (Debian: chromium chromium-driver)")
        return
    at = running.Server(SERVER, MODEL)
    page = Browser()
    page.do("url", url=f"http://127.0.0.1:{at.port}/")
    page.wait("return document.getElementById('model').textContent", "the model's name is shown")
    check(page.run("return document.activeElement.id") == "text", "the keyboard is where one types")
    check(page.run("return performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))"),
          "nothing is loaded from outside")
    # Whole words are streamed: the answer grows while it is said.
    page.run("window.seen = []; new MutationObserver(changes => { for (const change of changes)"
             "for (const node of change.addedNodes) if (node.nodeType === 3) seen.push(node.data); })"
             ".observe(document.getElementById('talk'), {childList: true, subtree: true})")
    first, _, _, said = says(at, page, 1, "Where does Ella live?")
    grown = page.run("return seen.filter(text => text && text.length < arguments[0].length && "
                     "arguments[0].startsWith(text))", said)
    check(len(grown) > 0, f"the answer came in pieces: {page.run('return seen')}")
    second, reused, fresh, _ = says(at, page, 2, "And the kite?")
    check(reused >= first and fresh < second - first + 2, (first, second, reused, fresh))
    third, more, _, _ = says(at, page, 3, "Who has it?")
    check(more >= second and third > second, (second, third, more))
    figures = page.wait("return document.getElementById('figures').textContent.match("
                        "/pages: \\d+ in use, \\d+ evictable, \\d+ free; hit ratio ([\\d.]+) %/)?.[1]", "the figures are shown")
    check(float(figures) > 0, figures)
    # Shift+Enter breaks the line; Tab reaches every control.
    page.press("a", SHIFT, ENTER)
    check(page.run("return document.getElementById('text').value") == "a\n", "Shift+Enter does not send")
    reached = set()
    for _ in range(8):
        page.press("\ue004")
        reached.add(page.run("return document.activeElement.id || document.activeElement.tagName"))
    check({"send", "clear", "SUMMARY"} <= reached, reached)
    page.run("document.getElementById('clear').click()")
    check(page.run("return document.querySelectorAll('.turn').length") == 0, "the talk is cleared")
    at_rest = page.run("return getComputedStyle(document.body).backgroundColor")
    check(at_rest == "rgb(255, 255, 255)", at_rest)
    severe = page.log()
    check(severe == [], severe)
    page.close()
    dark = Browser(dark=True)
    dark.do("url", url=f"http://127.0.0.1:{at.port}/")
    if dark.run("return matchMedia('(prefers-color-scheme: dark)').matches"):
        check(dark.run("return getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)", "it is dark where asked")
    dark.close()
    at.stop()
    print(f"page.py: {running.checks} checks hold")


main()
