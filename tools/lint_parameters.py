"""Parameters: no function, constructor or lambda of include/ has more than six without a reason"""
import re
import sys

from repository import headers, name_of

MOST = 6
REASON = re.compile(r"More than six parameters: \S.{10,}")
HIDDEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:\\\n|[^\n])*',
                    re.S | re.M)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|::|->|<=>|[<>=!+*/%&|^-]=|<<|\S")
CLOSES = {"(": ")", "[": "]", "{": "}"}
# Words that a parenthesis may follow without being a list of parameters; words that no subscript follows.
NO_NAME = {"requires", "noexcept", "decltype", "alignas", "static_assert", "explicit", "sizeof", "if", "__attribute__"}
NO_ARRAY = {"return", "co_return", "case", "else", "throw", "in"}


def hide(text: str) -> str:
    """C++ without comments, literals and directives, every character that is left at its place."""
    return HIDDEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]) if found[0].lstrip()[0] in "/#" else
                      '""' + re.sub(r"[^\n]", " ", found[0][2:]), text)


class parameter_lists:
    """Finds the lists of parameters in one header: (position of the statement, of the list, parameters)."""

    def __init__(self, text: str):
        found = list(TOKEN.finditer(hide(text)))
        self.words = [token[0] for token in found]
        self.places = [token.start() for token in found]
        self.found: list[tuple[int, int, int]] = []
        self.scope(0, declares=True)

    def close(self, at: int) -> int:
        """The bracket that closes the one at `at`, or the end."""
        depth = 0
        for here in range(at, len(self.words)):
            depth += (self.words[here] in CLOSES) - (self.words[here] in CLOSES.values())
            if depth == 0:
                return here
        return len(self.words) - 1

    def close_angle(self, at: int) -> int | None:
        """The > that closes the < at `at`; none if it is a comparison."""
        here, depth = at, 0
        while here < len(self.words):
            word = self.words[here]
            if word in CLOSES:
                here = self.close(here)
            elif word in CLOSES.values() or word == ";":
                return None
            depth += (word == "<") - (word == ">")
            if depth == 0:
                return here
            here += 1
        return None

    def count(self, start: int, end: int) -> int:
        """The parameters between two parentheses."""
        here, commas = start + 1, 0
        while here < end:
            word = self.words[here]
            if word in CLOSES:
                here = self.close(here)
            elif word == "<" and (closing := self.close_angle(here)) is not None:
                here = closing
            commas += word == ","
            here += 1
        return commas + (end > start + 1)

    def note(self, statement: int, start: int) -> None:
        number = self.count(start, self.close(start))
        if number > MOST:
            self.found.append((self.places[statement], self.places[start], number))

    def lambdas(self, here: int, statement: int) -> None:
        """Notes the parameters of the lambda that opens at `here`, if one does."""
        before = self.words[here - 1] if here else ";"
        if self.words[here] != "[" or (re.match(r"[\w\])\"]", before) and before not in NO_ARRAY):
            return
        after = self.close(here) + 1
        if self.words[after:after + 1] == ["<"]:
            after = (self.close_angle(after) or after) + 1
        if self.words[after:after + 1] == ["("]:
            self.note(statement, after)

    def scope(self, here: int, declares: bool) -> int:
        """Reads to the bracket that closes a scope. One that declares is a namespace or a class: a name and ( open a list of
        parameters there. Elsewhere only lambdas and classes do."""
        statement, opened, initializes, listed = here, here, False, False  # listed: after parameters, or after =
        while here < len(self.words) and self.words[here] not in CLOSES.values():
            word, before = self.words[here], self.words[here - 1] if here else ";"
            self.lambdas(here, statement)
            if word == "template" and self.words[here + 1:here + 2] == ["<"] and (end := self.close_angle(here + 1)):
                here = opened = end
                opened += 1
            elif word in ("(", "["):
                named = re.match(r"[A-Za-z_]", before) and before not in NO_NAME and not before.isupper()
                if before == ")":  # operator()
                    named = self.words[max(here - 3, 0):here] == ["operator", "(", ")"]
                if declares and word == "(" and named and not listed and self.words[here + 1] != ")":
                    self.note(statement, here)
                listed = listed or (word == "(" and before not in NO_NAME and before != "operator")
                here = self.scope(here + 1, declares=False)
            elif word == "<" and (end := self.close_angle(here)) is not None:
                here = end
            elif word == "{":
                head = self.words[opened:here]
                kind = not listed and {"namespace", "struct", "class", "union", "extern"} & set(head)
                member = initializes and before not in (")", "}")
                here = self.scope(here + 1, declares=bool(kind))
                if not member:
                    statement = opened = here + 1
                    initializes = listed = False
            elif word == ";" or (word == ":" and before in ("public", "private", "protected")):
                statement = opened = here + 1
                initializes = listed = False
            elif word == "=" and before != "operator":
                listed = True
            elif word == ":":
                initializes = listed
            here += 1
        return here


def wrong_in(name: str, text: str) -> list[str]:
    lines, wrong = text.splitlines(), []
    for statement, start, number in parameter_lists(text).found:
        above, block = text.count("\n", 0, statement), []
        while above and lines[above - 1].lstrip().startswith("//"):
            above -= 1
            block.insert(0, lines[above].strip().lstrip("/").strip())
        if not REASON.search(" ".join(block)):
            wrong.append(f"{name}:{text.count(chr(10), 0, start) + 1}: {number} parameters; group them, or say why above: "
                         "\"/// More than six parameters: ...\"")
    return wrong


SEVEN = "int a, int b, int c, int d, int e, int f, int g"
SAMPLES = {  # code and the parameters that are found in it
    f"void f({SEVEN});": [7],
    f"template <int A, int B, int C, int D, int E, int F, int G>\nvoid f(int a);": [],
    f"template <class T = x<1, 2>>\n[[nodiscard]] constexpr auto f({SEVEN}) noexcept -> int {{ return g(a, b, c, d, e, f, g); }}": [7],
    "void f(map<int, int> a = {1, 2}, int b = g(1, 2), pair<x<int, int>, int> c = {}, int d = 1, int e = 2, int f = 3);": [],
    "void f(bool a = b < c, bool d = e < h, int i, int j, int k, int l, int m);": [7],
    f"struct s {{\n  public:\n    s({SEVEN}) : a_(a), b_{{b}}, c_(a, b, c, d, e, f, g) {{}}\n    int x = f(1, 2, 3, 4, 5, 6, 7);\n}};": [7],
    f"struct s {{ void operator()({SEVEN}) const; bool operator==(int) const; }};": [7],
    f"namespace n {{\nvoid f() {{ auto g = [&](\n{SEVEN}) {{ return h(a, b, c, d, e, f, g); }}; x[1](1, 2, 3, 4, 5, 6, 7); }}\n}}": [7],
    f"void f() {{ g(1, []<class T>({SEVEN}, T h) {{}}); return [=]({SEVEN}) {{}}; }}": [8, 7],
    f"void f() {{ struct s {{ void g({SEVEN}); }}; }}": [7],
    f"void f() {{ int a = g(1, 2, 3, 4, 5, 6, 7); if (a) {{ h(1, 2, 3, 4, 5, 6, ')'); }} }}": [],
    f"/// Adds.\n/// More than six parameters: each stays in a register.\ntemplate <int A>\nvoid f({SEVEN});": [],
    f"/// More than six parameters: each stays\n/// in a register.\nint a;\nvoid f({SEVEN});": [7],
    f"// void f({SEVEN});\n#define f({SEVEN}) \\\n  g({SEVEN})\nconst char* h = \"f({SEVEN})\";": [],
    f"template <class T>\n  requires (x<T>)\nvoid f({SEVEN})\n  requires y<T>\n{{}}\nvoid g({SEVEN}, int h);": [7, 8],
}


def self_test() -> list[str]:
    """What the rule finds in the samples, where that is not what it should."""
    return [f"tools/lint_parameters.py: finds {found} parameters in {code!r}" for code, wanted in SAMPLES.items()
            if (found := [int(line.split(": ")[1].split()[0]) for line in wrong_in("", code)]) != wanted]


def check() -> list[str]:
    return self_test() + [line for path in headers() for line in wrong_in(name_of(path), path.read_text())]


if __name__ == "__main__":
    problems = check()
    print("\n".join(problems) or f"{len(headers())} headers, {len(SAMPLES)} samples")
    sys.exit(bool(problems))
