# SPDX-License-Identifier: MIT
"""Invented worlds as text: short notes about people, towns and things, and chats about them.

A world is a handful of facts. Each note states a few of them about one subject; a question needs the
facts of one note, or of two. Every answer comes first in its reply, without the bridge: the bridge, where
there is one, is named after it.
"""

import argparse
import dataclasses
import json
import random

SHE = "Anna Mira Lena Nora Ella Ruth Rosa Tina Vera Dana Kate Lucy Emma Sara Jane Lily Nina Olga Maya Ada".split()
HE = "Tom Max Paul Karl Omar Leon Finn Hugo Igor Noah Adam Mark Otto Rolf Sven Ivan Luke Hans Carl Ned".split()
TOWNS = ("Norvik Belmar Tarnet Oskel Vandor Kelmo Lurin Marven Dorset Pelka Sarno Ulmen Velton Tilbar Rondal "
         "Kasten Molin Farnel Gorvan Bersa Hastel Linmar Nelkan Tormin").split()
THINGS = ("kite lamp drum boat clock chair bell sword crown ring harp cart flute map cup box rug mask tent coat "
          "hat book stove wheel mirror ladder table bed").split()
COLOURS = "red blue green white black yellow brown grey pink purple".split()
MATERIALS = "wood clay glass iron silver paper wool stone leather bone tin straw".split()
JOBS = ("baker miller farmer teacher doctor painter singer tailor hunter sailor driver gardener fisher potter "
        "writer dancer guard judge mason barber nurse cook").split()
ANIMALS = "cat dog goat horse duck rabbit hen pig fox crow donkey sheep parrot mouse turtle hawk".split()
PETS = "Pip Milo Rusty Dot Bobo Coco Fudge Gus Kiki Luna Mop Nib Pogo Rex Tiger Zaza Biscuit Jazz Momo Bruno".split()
PRODUCTS = "honey cheese bread salt wine tea silk pears plums nuts butter fish jam soap rope ink cider beer".split()
LANDS = "sea lake river hills woods marsh valley desert cliffs moor".split()
MONTHS = "January February March April May June July August September October November December".split()
ROOMS = "attic cellar kitchen barn tower garden library stable hall shed chapel school".split()

# relation -> (subject type, value type)
RELATIONS = {
    "job": ("person", "job"),
    "home": ("person", "town"),
    "friend": ("person", "person"),
    "thing": ("person", "thing"),
    "animal": ("person", "animal"),
    "pet": ("person", "pet"),
    "land": ("town", "land"),
    "product": ("town", "product"),
    "fair": ("town", "month"),
    "mayor": ("town", "person"),
    "colour": ("thing", "colour"),
    "material": ("thing", "material"),
    "room": ("thing", "room"),
    "maker": ("thing", "person"),
}

# What a note says. {s}: the subject at the start of a sentence, {p}: her, his or its.
SENTENCES = {
    "job": ("{s} works as a {v}.", "{s} is a {v}."),
    "home": ("{s} lives in {v}.", "{s} has a house in {v}."),
    "friend": ("{s} has a best friend named {v}.", "{s} is best friends with {v}."),
    "thing": ("{s} owns a {c} {v}.", "{s} bought a {c} {v}."),
    "animal": ("{s} keeps a {v} named {n}.", "{s} has a {v} named {n}."),
    "land": ("{s} lies near the {v}.", "{s} is a town near the {v}."),
    "product": ("{s} is known for its {v}.", "{s} sells a lot of {v}."),
    "fair": ("{s} has a fair in {v}.", "{s} holds its fair in {v}."),
    "mayor": ("{s} has a mayor named {v}.", "{s} has {v} as its mayor."),
    "colour": ("{s} is {v}.",),
    "material": ("{s} is made of {v}.", "{s} was built out of {v}."),
    "room": ("{s} is kept in the {v}.", "{s} stands in the {v}."),
    "maker": ("{s} was made by {v}.", "{s} is the work of {v}."),
}

QUESTIONS = {
    "job": ("What is the job of {s}?", "What does {s} do?"),
    "home": ("Where does {s} live?", "In which town does {s} live?"),
    "friend": ("Who is the best friend of {s}?",),
    "thing": ("What does {s} own?",),
    "animal": ("What animal does {s} keep?", "Which animal does {s} have?"),
    "pet": ("What is the name of the animal of {s}?",),
    "land": ("What is {s} near?", "What does {s} lie near?"),
    "product": ("What is {s} known for?",),
    "fair": ("When is the fair of {s}?", "In which month is the fair of {s}?"),
    "mayor": ("Who is the mayor of {s}?",),
    "colour": ("What colour is {s}?",),
    "material": ("What is {s} made of?",),
    "room": ("Where is {s} kept?", "In which place is {s}?"),
    "maker": ("Who made {s}?",),
}

ANSWERS = {
    "job": "A {v}.", "home": "In {v}.", "friend": "It is {v}.", "thing": "A {v}.", "animal": "A {v}.",
    "pet": "It is {v}.", "land": "Near the {v}.", "product": "For its {v}.", "fair": "In {v}.",
    "mayor": "It is {v}.", "colour": "It is {v}.", "material": "Of {v}.", "room": "In the {v}.",
    "maker": "It is {v}.",
}

# Who or what a phrase means: the relation it reads backwards or forwards, and the phrase.
# (relation, backwards?) -> (phrases, the noun that the reply explains)
BRIDGES = {
    ("job", True): (("the {x}",), "{x}", "person"),
    ("thing", True): (("the owner of the {x}",), "owner", "person"),
    ("animal", True): (("the keeper of the {x}",), "keeper", "person"),
    ("pet", True): (("the keeper of {x}",), "keeper", "person"),
    ("friend", False): (("the best friend of {x}",), "friend", "person"),
    ("mayor", False): (("the mayor of {x}",), "mayor", "person"),
    ("maker", False): (("the maker of the {x}",), "maker", "person"),
    ("home", False): (("the town of {x}", "the home town of {x}"), "town", "town"),
    ("product", True): (("the town known for {x}",), "town", "town"),
    ("thing", False): (("the thing that {x} owns",), "thing", "thing"),
}
WHO = {
    ("job", True): ("Who is the {x}?", "Who works as a {x}?"),
    ("thing", True): ("Who owns the {x}?",),
    ("animal", True): ("Who keeps the {x}?",),
    ("pet", True): ("Who keeps {x}?",),
    ("product", True): ("Which town is known for {x}?",),
}

TALK = (
    ("Hello!", "Hello! Ask me about the notes."),
    ("Hi!", "Hello! Ask me about the notes."),
    ("Good morning!", "Good morning! Ask me about the notes."),
    ("Thank you!", "You are welcome."),
    ("Thanks!", "You are welcome."),
    ("Who are you?", "I am a small model. I answer questions about notes."),
    ("How are you?", "I am fine, thank you."),
    ("Goodbye!", "Goodbye!"),
    ("That is all, thank you!", "You are welcome. Goodbye!"),
)
UNKNOWN = "I do not know."
SYSTEMS = ("You answer questions about the notes.", "Answer from the notes.", "You are a helpful assistant.")
INTROS = ("Here are some notes.", "Please read these notes.", "These are the notes.")
MORE = ("Here is another note.", "Here are more notes.")
READ = "I have read the notes."

KINDS = ("one", "two", "refer", "follow", "unknown", "talk", "tell")


@dataclasses.dataclass
class Level:
    """How hard the worlds are: the ranges and shares that a training phase draws from."""

    documents: tuple = (3, 10)
    facts: tuple = (3, 6)
    refer: float = 0.35     # the share of person notes that are headed by a description or name a town by a person
    pronoun: float = 0.6    # the share of later sentences that say she, he or it
    mix: tuple = (0.28, 0.4, 0.1, 0.14, 0.04, 0.02, 0.02)  # of KINDS


@dataclasses.dataclass
class Question:
    kind: str
    hops: int
    text: str
    answer: str             # the first sentence of the reply
    reply: str
    relation: str
    subject: tuple          # (type, name): whom the answer is about
    value: tuple            # (type, name)
    support: tuple          # note indices


class World:
    """Facts, and the notes that state them."""

    def __init__(self, rng, level):
        self.rng = rng
        self.facts = {}      # (relation, subject) -> (value, note indices needed)
        self.back = {}       # (relation, value) -> subject, where that is one only
        self.notes = []
        count = rng.randint(*level.documents)
        self._draw(count)
        self._write(count, level)
        self.keys = list(self.facts)
        self.bridges = self._bridges()

    def _draw(self, count):
        rng = self.rng
        n = max(2, min(8, (count * 2 + 2) // 3))
        self.people = rng.sample(SHE + HE, n)
        self.towns = rng.sample(TOWNS, max(2, min(6, n)))
        self.things = dict(zip(self.people, rng.sample(THINGS, n)))
        self.colours = {t: rng.choice(COLOURS) for t in self.things.values()}
        self.jobs = dict(zip(self.people, rng.sample(JOBS, n)))
        self.animals = dict(zip(self.people, rng.sample(ANIMALS, n)))
        self.pets = dict(zip(self.people, rng.sample(PETS, n)))
        self.products = dict(zip(self.towns, rng.sample(PRODUCTS, len(self.towns))))
        homes = rng.sample(self.towns, len(self.towns)) + [rng.choice(self.towns) for _ in range(n)]
        self.homes = dict(zip(self.people, homes))

    def _subjects(self, count):
        """The subjects of the notes, people first; a person may have two notes."""
        rng = self.rng
        people, towns = list(self.people), [self.homes[p] for p in self.people]
        towns = list(dict.fromkeys(towns))
        things = list(self.things.values())
        rng.shuffle(towns)
        rng.shuffle(things)
        picks = [("person", people[0]), ("person", people[1])]
        pools = {"person": people[2:], "town": towns, "thing": things, "second": people[:]}
        rng.shuffle(pools["second"])
        while len(picks) < count:
            kind = rng.choices(("person", "town", "thing", "second"), (4, 3, 2, 2))[0]
            if not pools[kind]:
                continue
            name = pools[kind].pop()
            if kind == "second" and ("person", name) not in picks:
                continue
            picks.append((kind, name))
        rng.shuffle(picks)
        return picks[:count]

    def _write(self, count, level):
        rng = self.rng
        picks = self._subjects(count)
        seen, halves = {}, {}
        for index, (kind, name) in enumerate(picks):
            if kind == "second":
                kind = "person"
            first = seen.setdefault((kind, name), index) == index
            two_notes = sum(1 for k, n in picks if n == name and k in ("person", "second")) > 1
            if kind == "person":
                relations = ["job", "home", "friend", "thing", "animal"]
                if two_notes:
                    if name not in halves:
                        rng.shuffle(relations)
                        cut = rng.randint(2, 3)
                        halves[name] = (relations[:cut], relations[cut:])
                    relations = list(halves[name][0 if first else 1])
            elif kind == "town":
                relations = ["land", "product", "fair", "mayor"]
            else:
                relations = ["material", "room", "maker"]
                if rng.random() < 0.4:
                    relations.append("colour")
            rng.shuffle(relations)
            relations = relations[:rng.randint(*level.facts)]
            self._note(index, kind, name, relations, level)

    def _value(self, relation, name):
        rng = self.rng
        if relation == "job": return self.jobs[name]
        if relation == "home": return self.homes[name]
        if relation in ("friend", "mayor", "maker"):
            return rng.choice([p for p in self.people if p != name])
        if relation == "thing": return self.things[name]
        if relation == "animal": return self.animals[name]
        if relation == "product": return self.products[name]
        if relation == "colour": return self.colours[name]
        return rng.choice({"land": LANDS, "fair": MONTHS, "material": MATERIALS, "room": ROOMS}[relation])

    def _head(self, kind, name, index, level):
        """How a note calls its subject, and the notes that this needs."""
        rng = self.rng
        if kind == "town": return name, ()
        if kind == "thing": return "The " + name, ()
        if rng.random() < level.refer:
            heads = []
            for relation, phrase in (("job", "The {x}"), ("thing", "The owner of the {x}"), ("pet", "The keeper of {x}")):
                fact = self.facts.get((relation, name))
                if fact and len(fact[1]) == 1:
                    heads.append((phrase.format(x=fact[0]), fact[1]))
            if heads:
                return rng.choice(heads)
        return name, ()

    def _note(self, index, kind, name, relations, level):
        rng = self.rng
        head, needs = self._head(kind, name, index, level)
        pronoun = "It" if kind != "person" else ("She" if name in SHE else "He")
        sentences = []
        for place, relation in enumerate(relations):
            value = self._value(relation, name)
            needed = tuple(sorted({index, *needs}))
            subject = head if place == 0 else (pronoun if rng.random() < level.pronoun else head)
            text = rng.choice(SENTENCES[relation])
            if relation == "home" and rng.random() < level.refer:
                # The town is named by somebody whose home an earlier note states.
                others = [p for p in self.people if p != name and self.homes[p] == value
                          and len(self.facts.get(("home", p), (0, ()))[1]) == 1]
                others = [p for p in others if self.facts[("home", p)][1][0] != index]
                if others and not needs:
                    other = rng.choice(others)
                    needed = tuple(sorted({index, self.facts[("home", other)][1][0]}))
                    text = "{s} lives in the same town as " + other + "."
            sentences.append(text.format(s=subject, v=value, c=self.colours.get(value, ""), n=self.pets.get(name, "")))
            self._state(relation, name, value, needed)
            if relation == "thing":
                self._state("colour", value, self.colours[value], (index,))
            if relation == "animal":
                self._state("pet", name, self.pets[name], needed)
        self.notes.append("- " + " ".join(sentences))

    def _state(self, relation, subject, value, needed):
        if (relation, subject) in self.facts:
            return
        self.facts[(relation, subject)] = (value, needed)
        key = (relation, value)
        self.back[key] = None if key in self.back else subject

    def _bridges(self):
        """Phrases for an entity: (type, name) -> [(phrase, noun, needed, relation, backwards)]."""
        found = {}
        for (relation, subject), (value, needed) in self.facts.items():
            for backwards in (False, True):
                if (relation, backwards) not in BRIDGES:
                    continue
                phrases, noun, kind = BRIDGES[(relation, backwards)]
                meant, x = (subject, value) if backwards else (value, subject)
                if backwards and self.back[(relation, value)] is None:
                    continue
                if len(needed) > 1:
                    continue
                for phrase in phrases:
                    found.setdefault((kind, meant), []).append(
                        (phrase.format(x=x), noun.format(x=x), needed, relation, backwards))
        return found

    def name(self, kind, name):
        return "the " + name if kind == "thing" else name

    def _answer(self, relation, value):
        if relation == "thing":
            value = self.colours[value] + " " + value
        return ANSWERS[relation].format(v=value)

    def direct(self, key):
        relation, subject = key
        value, needed = self.facts[key]
        kind, value_kind = RELATIONS[relation]
        text = self.rng.choice(QUESTIONS[relation]).format(s=self.name(kind, subject))
        answer = self._answer(relation, value)
        return Question("one" if len(needed) == 1 else "refer", len(needed), text, answer, answer, relation,
                        (kind, subject), (value_kind, value), needed)

    def who(self):
        """A question that reads a fact backwards."""
        for _ in range(10):
            relation, subject = key = self.rng.choice(self.keys)
            value, needed = self.facts[key]
            if (relation, True) in WHO and self.back[(relation, value)] is not None:
                text = self.rng.choice(WHO[(relation, True)]).format(x=value)
                answer = f"It is {subject}."
                return Question("one" if len(needed) == 1 else "refer", len(needed), text, answer, answer,
                                "who", (RELATIONS[relation][1], value), (RELATIONS[relation][0], subject), needed)
        return None

    def two(self):
        for _ in range(20):
            relation, subject = key = self.rng.choice(self.keys)
            value, needed = self.facts[key]
            kind, value_kind = RELATIONS[relation]
            options = self.bridges.get((kind, subject))
            if not options or len(needed) != 1:
                continue
            phrase, noun, bridge_needed, bridge, backwards = self.rng.choice(options)
            if {bridge, relation} in ({"animal"}, {"pet"}, {"animal", "pet"}) or bridge == relation and backwards:
                continue
            support = tuple(sorted({*needed, *bridge_needed}))
            if len(support) != 2:
                continue
            if relation == "friend" and phrase.endswith(" " + value) or relation == "thing" and bridge == "thing":
                continue
            text = self.rng.choice(QUESTIONS[relation]).format(s=phrase)
            answer = self._answer(relation, value)
            reply = f"{answer} The {noun} is {self.name(kind, subject)}."
            return Question("two", 2, text, answer, reply, relation, (kind, subject), (value_kind, value), support)
        return None

    def unknown(self):
        rng = self.rng
        if rng.random() < 0.5:
            name = rng.choice(SHE + HE)
            kind, relation = "person", rng.choice(("job", "home", "friend", "thing", "animal"))
        else:
            kind = rng.choice(("person", "town", "thing"))
            name = rng.choice({"person": self.people, "town": self.towns, "thing": list(self.things.values())}[kind])
            relation = rng.choice([r for r, (k, _) in RELATIONS.items() if k == kind and r != "colour"])
        if (relation, name) in self.facts:
            return None
        text = rng.choice(QUESTIONS[relation]).format(s=self.name(kind, name))
        return Question("unknown", 0, text, UNKNOWN, UNKNOWN, relation, (kind, name), ("none", ""), ())

    def follow(self, last):
        """A question that leans on the turn before it."""
        rng = self.rng
        focus = last.value if last.value[0] in ("person", "town", "thing") else last.subject
        if last.kind in ("two", "tell"):
            focus = last.subject
        if focus[0] not in ("person", "town", "thing"):
            return None
        if rng.random() < 0.25 and last.relation in RELATIONS and last.kind != "unknown":
            kind = RELATIONS[last.relation][0]
            keys = [k for k in self.keys if k[0] == last.relation and k[1] != last.subject[1]]
            if not keys:
                return None
            key = rng.choice(keys)
            question = self.direct(key)
            question.text = f"And {self.name(kind, key[1])}?"
        else:
            keys = [k for k in self.keys if k[1] == focus[1] and RELATIONS[k[0]][0] == focus[0]
                    and (k[0] != last.relation or focus != last.subject)]
            if not keys:
                return None
            key = rng.choice(keys)
            question = self.direct(key)
            if focus[0] == "person":
                word = "she" if focus[1] in SHE else "he"
                possessive = "her" if focus[1] in SHE else "his"
            else:
                word = "it"
                possessive = "its"
            text = rng.choice(QUESTIONS[key[0]])
            if key[0] == "pet":
                text = f"What is the name of {possessive} animal?"
            elif "of {s}?" in text and text != "What is {s} made of?":
                text = text.replace("the job of {s}", f"{possessive} job").replace(
                    "the best friend of {s}", f"{possessive} best friend").replace(
                    "the fair of {s}", f"{possessive} fair").replace("the mayor of {s}", f"{possessive} mayor")
            elif focus[0] == "town" and rng.random() < 0.5:
                word = "that town"
            text = text.format(s=word)
            if rng.random() < 0.4:
                text = "And " + text[0].lower() + text[1:]
            question.text = text
        if question.hops != 1:
            return None
        question.kind = "follow"
        return question

    def tell(self):
        """All that the notes state of one subject, in the order of RELATIONS."""
        kind, name = self.rng.choice(sorted({(RELATIONS[r][0], n) for r, n in self.keys}))
        subject, sentences, support = self.name(kind, name), [], set()
        head = subject[0].upper() + subject[1:]
        for relation in RELATIONS:
            if (relation, name) in self.facts and RELATIONS[relation][0] == kind and relation != "pet":
                value, needed = self.facts[(relation, name)]
                support.update(needed)
                sentences.append(SENTENCES[relation][0].format(
                    s=head, v=value, c=self.colours.get(value, ""), n=self.pets.get(name, "")))
        reply = " ".join(sentences)
        return Question("tell", len(support), f"Tell me about {subject}.", reply, reply, "tell", (kind, name),
                        (kind, name), tuple(sorted(support)))

    def ask(self, kind, last=None):
        if kind == "one":
            if self.rng.random() < 0.25:
                question = self.who()
            else:
                question = self.direct(self.rng.choice(self.keys))
            return question if question and question.kind == "one" else None
        if kind == "refer":
            keys = [k for k in self.keys if len(self.facts[k][1]) > 1]
            return self.direct(self.rng.choice(keys)) if keys else None
        if kind == "two":
            return self.two()
        if kind == "follow":
            return self.follow(last) if last else None
        if kind == "unknown":
            return self.unknown()
        if kind == "tell":
            return self.tell()
        return None


def chat(rng, level, length):
    """One training text of some `length` words as pieces (text, learns): a chat over one world."""
    world = World(rng, level)
    notes = world.notes
    held = []
    if len(notes) > 4 and rng.random() < 0.15:     # the last notes come in a later turn
        cut = rng.randint(1, 2)
        notes, held = notes[:-cut], notes[-cut:]
    visible = len(notes)
    body = "\n".join(notes)
    pieces, used = [], 0

    def say(role, text):
        nonlocal used
        pieces.append((f"<|im_start|>{role}\n", False))
        pieces.append((text, role == "assistant"))
        pieces.append(("<|im_end|>", role == "assistant"))
        pieces.append(("\n", False))
        used += words(text) + 5

    system = rng.choice(SYSTEMS)
    style = rng.random()
    prefix = ""
    if style < 0.6:
        say("system", system + "\n" + body)
    else:
        if style < 0.9:
            say("system", system)
        prefix = rng.choice(INTROS) + "\n" + body
        if rng.random() < 0.5:
            say("user", prefix)
            say("assistant", READ)
            prefix = ""
        else:
            prefix += "\n"
    asked, last, misses = set(), None, 0
    while used < length and misses < 40:
        kind = rng.choices(KINDS, level.mix)[0]
        if kind == "talk":
            text, reply = rng.choice(TALK)
            if held and rng.random() < 0.8:
                text, reply = rng.choice(MORE) + "\n" + "\n".join(held), READ
                visible, held = len(world.notes), []
            question = None
        else:
            question = world.ask(kind, last)
            if (question is None or (question.relation, question.subject) in asked
                    or question.support and max(question.support) >= visible
                    or question.kind == "unknown" and held):
                misses += 1
                if misses > 8 and held:
                    text, reply = rng.choice(MORE) + "\n" + "\n".join(held), READ
                    visible, held, question, misses = len(world.notes), [], None, 0
                else:
                    continue
            else:
                misses = 0
                asked.add((question.relation, question.subject))
                text, reply = question.text, question.reply
        say("user", prefix + text)
        prefix = ""
        say("assistant", reply)
        last = question
    return pieces


def words(text):
    """A cheap guess at the number of tokens."""
    return text.count(" ") + text.count(".") + text.count("?") + text.count("\n") + text.count("'") + 1


def items(seed, count, level, kinds):
    """Held-out questions: `count` of each kind in `kinds`, each with its notes and, for follow-ups, its history."""
    rng = random.Random(seed)
    for kind in kinds:
        made = 0
        while made < count:
            world = World(rng, level)
            history, last = [], None
            if kind == "follow":
                last = world.ask(rng.choice(("one", "two")))
                if last is None:
                    continue
                history = [last.text, last.reply]
            question = world.ask(kind, last)
            if question is None or last and (question.relation, question.subject) == (last.relation, last.subject):
                continue
            made += 1
            yield {"kind": kind, "hops": question.hops, "documents": world.notes, "history": history,
                   "question": question.text, "answer": question.answer, "support": list(question.support)}


def conversation(seed, documents=8):
    """A scripted chat of ten turns over one world: the notes first, one more of them halfway, thanks at the end."""
    rng = random.Random(seed)
    while True:
        world = World(rng, Level((documents, documents)))
        visible, last, asked = documents - 1, None, set()
        turns, answers = [INTROS[0] + "\n" + "\n".join(world.notes[:-1])], [READ]
        # Kinds of turns 2 to 9; a question after "more" needs the note that came last.
        for kind in ("one", "follow", "two", "follow", "more", "new", "follow", "two"):
            if kind == "more":
                turns.append(MORE[0] + "\n" + world.notes[-1])
                answers.append(READ)
                visible, last = documents, None
                continue
            for _ in range(200):
                question = world.ask(rng.choice(("one", "two")) if kind == "new" else kind, last)
                if (question and (question.relation, question.subject) not in asked
                        and max(question.support) < visible and (kind != "new" or visible - 1 in question.support)):
                    break
            else:
                break
            asked.add((question.relation, question.subject))
            turns.append(question.text)
            answers.append(question.answer)
            last = question
        if len(turns) == 9:
            return {"system": SYSTEMS[0], "turns": turns + [TALK[3][0]], "answers": answers + [TALK[3][1]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversation", action="store_true", help="print a scripted chat as JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--questions", action="store_true", help="print held-out items as JSON lines")
    args = parser.parse_args()
    if args.conversation:
        print(json.dumps(conversation(args.seed), indent=2))
        return
    if args.questions:
        for item in items(args.seed, args.count, Level(), KINDS[:5]):
            print(json.dumps(item))
        return
    rng = random.Random(args.seed)
    for _ in range(args.count):
        print("".join(text for text, _ in chat(rng, Level(), 400)))


if __name__ == "__main__":
    main()
