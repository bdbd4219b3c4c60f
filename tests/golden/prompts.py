"""The prompts of llama_cpp.json, and how it is written. All texts are our own."""

import json
import pathlib

GOLDEN = pathlib.Path(__file__).with_name("llama_cpp.json")


def chat(*turns):
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return said + "<|im_start|>assistant\n"


SYSTEM = ("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")

STORY = """The clockmaker's shop stood at the corner of two streets that had both been renamed so often that nobody used \
their names any more. People said "by the clocks" and were understood. In the window hung eleven clocks, and no two of \
them agreed. Visitors took this for carelessness. In truth each clock was set to the hour of a city in which the \
clockmaker had once been happy, and he would not have corrected any of them for money.

One morning in March a girl of about twelve came in with a wooden box under her arm. She put it on the counter, wiped \
the rain from the lid with her sleeve, and asked what it would cost to have it opened. The clockmaker turned the box \
around. It had no hinge, no keyhole and no seam that he could find. On one side somebody had scratched a row of seven \
small circles, three of them filled in.

"Where did you get this?" he asked.

"It was my aunt's," said the girl. "She told me that it would open when I could tell it the right time. I have told it \
the right time every day for a year. I have a good watch."

The clockmaker smiled, because he had known the aunt. He remembered a woman with ink on her fingers who came to the \
shop each autumn, never bought anything, and always stopped in front of the fourth clock from the left. He looked at \
the seven circles again. Then he went to the window, and counted the clocks from the left, and stopped at the fourth. \
It said ten minutes to four. He wrote the number on a slip of paper, folded it, and put it into his waistcoat.

"A box like this does not ask for the time here," he said. "It wants to know what time it is somewhere else. The \
question is where. Did your aunt travel?"

The girl thought about it. Her aunt had sent postcards, she said, but only from one place, a harbour town with a long \
stone pier and a yellow customs house. There were six of the cards, one for each year that she was away. On every one \
of them the picture was the same, and on every one of them, in the lower corner, her aunt had drawn a little circle \
and either filled it in or left it empty.

"Six cards," said the clockmaker, "and seven circles on the box."

"Yes," said the girl. "I have always supposed that one of the cards was lost."

The rain had stopped. In the window the first of the eleven clocks began to strike, and then, a breath later, the \
third. The clockmaker took the slip of paper out of his waistcoat, unfolded it, and laid it next to the box, so that \
the girl could read it."""

PROTOCOL = """Minutes of the monthly meeting of the allotment society, held in the tool shed because the hall was being \
painted.

1. The treasurer reported a balance of 412.60. The largest expense was the new water tank (189.00), the smallest was \
string (2.40). Two members have not paid since May; she will write to them again, more firmly.
2. Plot 17 has been given up. There are five names on the waiting list. The first of them, Mr. Okafor, will be asked \
whether he minds the shade of the walnut tree.
3. The badger was discussed at length. Mrs. Lindqvist proposed a fence; Mr. Haddad said that a fence only teaches a \
badger to dig. It was agreed to do nothing until April and to stop leaving out plums.
4. The seed swap will be on the second Saturday in February. Labels must state the year of harvest. Last year's \
"mystery squash" is not to be repeated.
5. Any other business: the wheelbarrow with the green handle is missing. Nobody is accused."""

PYTHON = '''def moving_average(values, window):
    """Return the averages of each run of `window` neighbouring values."""
    if window <= 0:
        raise ValueError("window must be positive")
    total = sum(values[:window])
    averages = [total / window]
    for i in range(window, len(values)):
'''

RUST = """/// A queue of at most `N` items; pushing onto a full queue gives the item back.
pub struct Bounded<T, const N: usize> {
    items: std::collections::VecDeque<T>,
}

impl<T, const N: usize> Bounded<T, N> {
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.items.len() == N {
"""

PROMPTS = [
    ("one_word", "Hello"),
    ("one_letter", "a"),
    ("capital", "The capital of France is"),
    ("counting", "one, two, three, four, five,"),
    ("digits", "3.14159 2653 1234567890 007 42"),
    ("spaces", "  leading   and\ttabs\n\n\n   then    some    gaps   "),
    ("quote", "\"It's not what we'd have chosen,\" she'll say; 'they're here, and we've got to go,'"),
    ("story_opening", "On the third day of the storm, the lighthouse keeper climbed the stairs and found that"),
    ("recipe", "Ingredients for a simple lentil soup:\n\n- 200 g red lentils\n- 1 onion\n-"),
    ("french", "Le boulanger du village se levait à quatre heures, été comme hiver, et"),
    ("german", "Die alte Brücke über den Fluss wurde im Frühjahr gesperrt, weil größere Schäden"),
    ("mixed_scripts", "Привет, мир! こんにちは、世界。 你好，世界！ مرحبا بالعالم 안녕하세요 γειά σου"),
    ("emoji", "Party at 8 🎉🎂 bring the dog 🐕‍🦺 and a flag 🏳️‍🌈 👍🏽 ok?"),
    ("python", PYTHON),
    ("rust", RUST),
    ("json", '{"name": "kettle", "price": 24.5, "tags": ["kitchen", "steel"], "stock": {"berlin": 3, "lyon":'),
    ("html", '<ul class="menu">\n  <li><a href="/">Home</a></li>\n  <li><a href="/about">About</a></li>\n  <li>'),
    ("chat_short", chat(SYSTEM, ("user", "What is the tallest kind of tree?"))),
    ("chat_no_system", chat(("user", "Write a haiku about a broken umbrella."))),
    (
        "chat_turns",
        chat(
            ("system", "Answer in one short sentence."),
            ("user", "Why is the sky blue?"),
            ("assistant", "Because air scatters blue light more than red light."),
            ("user", "And why is it red in the evening?"),
        ),
    ),
    ("chat_code", chat(SYSTEM, ("user", "Write a Rust function that reverses the words of a sentence."))),
    ("chat_summary", chat(SYSTEM, ("user", f"Summarize these minutes in two sentences.\n\n{PROTOCOL}"))),
    ("long_story", STORY),
    ("long_chat", chat(SYSTEM, ("user", f"{STORY}\n\nContinue the story with one paragraph."))),
]


def save(result):
    out = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    # One prompt per line, so that a change can be read in a diff.
    out = out.replace(',{"name":', ',\n{"name":').replace('"prompts":[', '"prompts":[\n')
    GOLDEN.write_text(out + "\n")
