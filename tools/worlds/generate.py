# SPDX-License-Identifier: MIT
"""Invented worlds as text: short notes about people, towns and things, and chats about them.

A world is a handful of facts. A fact has one sentence, whose value comes last; each note states a few facts about
one subject. A reply restates the sentences of the notes that answer the question, the bridge of two hops first.
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
VALUES = {
    "job": "baker miller farmer teacher doctor painter singer tailor hunter sailor driver gardener fisher potter "
           "writer dancer guard judge mason barber nurse cook",
    "animal": "cat dog goat horse duck rabbit hen pig fox crow donkey sheep parrot mouse turtle hawk",
    "month": "January February March April May June July August September October November December",
    "colour": "red blue green white black yellow brown grey pink purple",
    "material": "wood clay glass iron silver paper wool stone leather bone tin straw",
    "room": "attic cellar kitchen barn tower garden library stable hall shed chapel school",
    "land": "sea lake river hills woods marsh valley desert cliffs moor",
    "product": "honey cheese bread salt wine tea silk pears plums nuts butter fish jam soap rope ink cider beer",
}
VALUES = {kind: words.split() for kind, words in VALUES.items()}
NAMES = (SHE, HE, TOWNS, THINGS, *VALUES.values())

# relation -> (type of the subject, type of the value, sentence, question, question behind a turn about the subject)
RELATIONS = {
    "job": ("person", "job", "{s} works as a {v}.", "What does {s} work as?", "What does {s} work as?"),
    "home": ("person", "town", "{s} lives in {v}.", "Where does {s} live?", "Where does {s} live?"),
    "animal": ("person", "animal", "{s} keeps a {v}.", "Which animal does {s} keep?", "Which animal does {s} keep?"),
    "birth": ("person", "month", "{s} was born in {v}.", "When was {s} born?", "When was {s} born?"),
    "friend": ("person", "person", "The friend of {s} is {v}.", "Who is the friend of {s}?", "Who is {p} friend?"),
    "owner": ("thing", "person", "{s} belongs to {v}.", "Who owns {s}?", "Who owns {s}?"),
    "maker": ("thing", "person", "{s} was made by {v}.", "Who made {s}?", "Who made {s}?"),
    "material": ("thing", "material", "{s} is made of {v}.", "What is {s} made of?", "What is {s} made of?"),
    "colour": ("thing", "colour", "{s} is painted {v}.", "Which colour is {s}?", "Which colour is {s}?"),
    "room": ("thing", "room", "{s} stands in the {v}.", "Where does {s} stand?", "Where does {s} stand?"),
    "mayor": ("town", "person", "The mayor of {s} is {v}.", "Who is the mayor of {s}?", "Who is {p} mayor?"),
    "land": ("town", "land", "{s} lies near the {v}.", "What does {s} lie near?", "What does {s} lie near?"),
    "product": ("town", "product", "{s} is known for {v}.", "What is {s} known for?", "What is {s} known for?"),
    "fair": ("town", "month", "The fair of {s} is in {v}.", "When is the fair of {s}?", "When is {p} fair?"),
}
OF_TYPE = {kind: [r for r, row in RELATIONS.items() if row[0] == kind] for kind in ("person", "thing", "town")}
# The relations that lead to a second hop: how a question calls the value.
BRIDGES = {"owner": "the owner of {s}", "maker": "the maker of {s}", "friend": "the friend of {s}",
           "mayor": "the mayor of {s}", "home": "the town of {s}"}

TALK = (
    ("Hello!", "Hello! Ask me about the notes."),
    ("Good morning!", "Good morning! Ask me about the notes."),
    ("Thank you!", "You are welcome."),
    ("Who are you?", "I am a small model. I answer questions about notes."),
    ("How are you?", "I am fine, thank you."),
    ("Goodbye!", "Goodbye!"),
)
UNKNOWN = "I do not know."
SYSTEMS = ("You answer questions about the notes.", "Answer from the notes.", "You are a helpful assistant.")
INTROS = ("Here are some notes.", "Please read these notes.")
MORE = "Here is another note."
READ = "I have read the notes."

KINDS = ("one", "two", "follow", "refer", "unknown", "tell", "talk")


@dataclasses.dataclass
class Level:
    """How hard the worlds are: the ranges and shares that a training phase draws from."""

    documents: tuple = (3, 10)
    facts: tuple = (3, 5)
    refer: float = 0.15     # the share of notes, behind another note about the subject, that only say she, he or it
    mix: tuple = (0.34, 0.33, 0.17, 0.06, 0.04, 0.04, 0.02)  # of KINDS


@dataclasses.dataclass
class Question:
    kind: str
    hops: int
    text: str
    answer: str
    fact: tuple              # (relation, subject) of the last sentence
    mentioned: tuple         # names of the reply, in order
    support: tuple           # note indices


class World:
    """Facts, and the notes that state them."""

    def __init__(self, rng, level):
        self.rng = rng
        self.facts = {}      # (relation, subject) -> (value, note index, by pronoun?)
        self.type = {}
        self.notes = []
        count = rng.randint(*level.documents)
        people = rng.sample(SHE + HE, max(2, count // 2))
        towns = rng.sample(TOWNS, max(1, count // 3))
        things = rng.sample(THINGS, max(1, count - len(people) - len(towns)))
        self.pools = {"person": people, "town": towns, "thing": things}
        subjects = people + towns + things
        for kind, names in self.pools.items():
            self.type.update((name, kind) for name in names)
        rng.shuffle(subjects)
        for subject in subjects[:count]:
            if len(self.notes) < count:
                self._write(subject, count, level)

    def _write(self, subject, count, level):
        rng, kind = self.rng, self.type[subject]
        relations = rng.sample(OF_TYPE[kind], min(len(OF_TYPE[kind]), rng.randint(*level.facts)))
        behind = []          # what a second note says of the subject, by pronoun
        if len(relations) > 3 and len(self.notes) + 1 < count and rng.random() < level.refer:
            behind = [r for r in relations if RELATIONS[r][2].startswith("{s}")][:2]
            relations = [r for r in relations if r not in behind]
        pronoun = "It" if kind != "person" else "She" if subject in SHE else "He"
        for part, called in ((relations, None), (behind, pronoun)):
            sentences = []
            for relation in part:
                value = self._value(relation, subject)
                self.facts[relation, subject] = (value, len(self.notes), called is not None)
                sentences.append(self.sentence(relation, subject, value, called))
            if sentences:
                self.notes.append("- " + " ".join(sentences))

    def _value(self, relation, subject):
        kind, rng = RELATIONS[relation][1], self.rng
        if kind in VALUES:
            return rng.choice(VALUES[kind])
        others = [name for name in self.pools[kind] if name != subject]
        if rng.random() < 0.15 or not others:
            others = TOWNS if kind == "town" else [p for p in SHE + HE if p != subject]
        value = rng.choice(others)
        self.type[value] = kind
        return value

    def name(self, subject):
        return "the " + subject if self.type.get(subject, "thing") == "thing" else subject

    def sentence(self, relation, subject, value, called=None):
        head = called or self.name(subject)
        text = RELATIONS[relation][2].format(s=head, v=value)
        return text[0].upper() + text[1:]

    def restate(self, *facts):
        return " ".join(self.sentence(*fact, self.facts[fact][0]) for fact in facts)

    def _question(self, kind, text, *facts):
        mentioned = [name for fact in facts for name in (fact[1], self.facts[fact][0])]
        support = {self.facts[fact][1] for fact in facts}
        # A note that says she, he or it needs the note before it.
        support |= {self.facts[fact][1] - 1 for fact in facts if self.facts[fact][2]}
        return Question(kind, len(facts), text, self.restate(*facts), facts[-1], tuple(mentioned),
                        tuple(sorted(support)))

    def one(self, kind):
        facts = [fact for fact, (_, _, called) in self.facts.items() if called == (kind == "refer")]
        if not facts:
            return None
        fact = self.rng.choice(facts)
        return self._question(kind, RELATIONS[fact[0]][3].format(s=self.name(fact[1])), fact)

    def two(self):
        pairs = []
        for fact, (value, note, called) in self.facts.items():
            if fact[0] in BRIDGES and not called:
                pairs += [(fact, (relation, value)) for relation in RELATIONS
                          if (relation, value) in self.facts and relation != fact[0]
                          and not self.facts[relation, value][2] and self.facts[relation, value][1] != note]
        if not pairs:
            return None
        bridge, fact = self.rng.choice(pairs)
        phrase = BRIDGES[bridge[0]].format(s=self.name(bridge[1]))
        return self._question("two", RELATIONS[fact[0]][3].format(s=phrase), bridge, fact)

    def follow(self, last):
        """A question that leans on the turn before it: she, he or it is whom that reply named last."""
        rng = self.rng
        if rng.random() < 0.2:
            facts = [f for f in self.facts if f[0] == last.fact[0] and f != last.fact and not self.facts[f][2]]
            if not facts:
                return None
            fact = rng.choice(facts)
            return self._question("follow", f"And {self.name(fact[1])}?", fact)
        people = [name for name in last.mentioned if self.type.get(name) == "person"]
        others = [name for name in last.mentioned if self.type.get(name) in ("town", "thing")]
        facts = [f for f in self.facts if f[1] in people[-1:] + others[-1:] and f != last.fact and not self.facts[f][2]]
        if not facts:
            return None
        fact = rng.choice(facts)
        she = {"person": ("she", "her") if fact[1] in SHE else ("he", "his")}.get(self.type[fact[1]], ("it", "its"))
        text = RELATIONS[fact[0]][4].format(s=she[0], p=she[1])
        if rng.random() < 0.5:
            text = "And " + text[0].lower() + text[1:]
        return self._question("follow", text, fact)

    def unknown(self):
        """Of a subject of the notes, or of none of them, what the notes do not state."""
        rng = self.rng
        relation = rng.choice(list(RELATIONS))
        pool = {"person": SHE + HE, "town": TOWNS, "thing": THINGS}[RELATIONS[relation][0]]
        subject = rng.choice(self.pools[RELATIONS[relation][0]] if rng.random() < 0.5 else pool)
        if (relation, subject) in self.facts:
            return None
        text = RELATIONS[relation][3].format(s="the " + subject if RELATIONS[relation][0] == "thing" else subject)
        return Question("unknown", 0, text, UNKNOWN, (relation, subject), (), ())

    def tell(self):
        """All that the notes state of one subject."""
        subject = self.rng.choice(list(self.facts))[1]
        facts = [fact for fact in self.facts if fact[1] == subject]
        return self._question("tell", f"Tell me about {self.name(subject)}.", *facts)

    def ask(self, kind, last=None):
        if kind in ("one", "refer"):
            return self.one(kind)
        if kind == "follow":
            return self.follow(last) if last and last.support else None
        return {"two": self.two, "unknown": self.unknown, "tell": self.tell}[kind]()


def chat(rng, level, length):
    """One training text of some `length` words as pieces (text, learns): a chat over one world."""
    world = World(rng, level)
    notes, held = world.notes, []
    if len(notes) > 4 and rng.random() < 0.15:     # the last note comes in a later turn
        notes, held = notes[:-1], notes[-1:]
    pieces, used = [], 0

    def say(role, text):
        nonlocal used
        pieces.append((f"<|im_start|>{role}\n", False))
        pieces.append((text, role == "assistant"))
        pieces.append(("<|im_end|>", role == "assistant"))
        pieces.append(("\n", False))
        used += text.count(" ") + text.count(".") + text.count("?") + 6

    style, prefix = rng.random(), ""
    if style < 0.6:
        say("system", rng.choice(SYSTEMS) + "\n" + "\n".join(notes))
    else:
        if style < 0.9:
            say("system", rng.choice(SYSTEMS))
        prefix = rng.choice(INTROS) + "\n" + "\n".join(notes)
        if rng.random() < 0.7:
            say("user", prefix)
            say("assistant", READ)
            prefix = ""
        else:
            prefix += "\n"
    asked, last, misses = set(), None, 0
    while used < length and misses < 40:
        if held and (misses > 8 or rng.random() < 0.2):
            say("user", prefix + MORE + "\n" + held.pop())
            say("assistant", READ)
            prefix, last = "", None
            continue
        kind = rng.choices(KINDS, level.mix)[0]
        if kind == "talk":
            question, (text, reply) = None, rng.choice(TALK)
        else:
            question = world.ask(kind, last)
            if (question is None or (question.hops, question.fact) in asked or held and (
                    not question.support or max(question.support) == len(world.notes) - 1)):
                misses += 1
                continue
            asked.add((question.hops, question.fact))
            text, reply, misses = question.text, question.answer, 0
        say("user", prefix + text)
        say("assistant", reply)
        prefix, last = "", question
    return pieces


def repeats(rng, length):
    """A warm-up text: a run of random words, said twice, then another; the second time can be foretold."""
    pieces, used = [], 0
    words = [word for group in NAMES for word in group]
    while used < length:
        few = rng.sample(words, rng.choice((8, 16, 40)))
        run = "".join(" " + rng.choice(few) for _ in range(rng.randint(10, 40)))
        pieces += [("<|endoftext|>", False), (run, False), (" .", False), (run, True), (" .", True)]
        used += 2 * run.count(" ") + 3
    return pieces


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
                history = [last.text, last.answer]
            question = world.ask(kind, last)
            if question is None:
                continue
            made += 1
            # What a guess of a fitting value would get: the commonest value of the relation in the notes.
            values = [value for (relation, _), (value, _, _) in world.facts.items() if relation == question.fact[0]]
            guess = max(map(values.count, values)) / len(values) if question.hops else 0.0
            yield {"kind": kind, "hops": question.hops, "documents": world.notes, "history": history,
                   "question": question.text, "answer": question.answer, "support": list(question.support),
                   "guess": round(guess, 3)}


def conversation(seed, documents=14):
    """A scripted chat of ten turns over one world: the notes first, one more of them halfway, thanks at the end."""
    rng = random.Random(seed)
    while True:
        world = World(rng, Level((documents, documents), (4, 5), 0.0))
        visible, last, asked = len(world.notes) - 1, None, set()
        turns, answers = [INTROS[0] + "\n" + "\n".join(world.notes[:-1])], [READ]
        # Kinds of turns 2 to 9; "new" needs the note that came last.
        for kind in ("two", "follow", "tell", "one", "more", "new", "two", "tell"):
            if kind == "more":
                turns.append(MORE + "\n" + world.notes[-1])
                answers.append(READ)
                visible, last = len(world.notes), None
                continue
            for _ in range(200):
                question = world.ask("one" if kind == "new" else kind, last)
                if (question and question.fact not in asked and max(question.support) < visible
                        and (kind != "new" or visible - 1 in question.support)):
                    break
            else:
                break
            asked.add(question.fact)
            turns.append(question.text)
            answers.append(question.answer)
            last = question
        if len(turns) == 9:
            return {"system": SYSTEMS[0], "turns": turns + [TALK[2][0]], "answers": answers + [TALK[2][1]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--questions", action="store_true", help="print held-out items as JSON lines")
    parser.add_argument("--conversation", action="store_true", help="print a scripted chat as JSON")
    args = parser.parse_args()
    if args.conversation:
        print(json.dumps(conversation(args.seed), indent=2))
    elif args.questions:
        for item in items(args.seed, args.count, Level(), KINDS[:5]):
            print(json.dumps(item))
    else:
        rng = random.Random(args.seed)
        for _ in range(args.count):
            print("".join(text for text, _ in chat(rng, Level(), 400)))


if __name__ == "__main__":
    main()
