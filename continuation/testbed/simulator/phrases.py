"""What the simulated model can say. `{n}` and `{w}` are filled in, so that no two prompts get the same answer."""

THOUGHTS = (
    "The user asks for something that {w} settles in about {n} words.",
    "First I compare it with the {w}, then I check the number {n}.",
    "问题并不难，先想想{w}，再核对数字{n}。",
    "That leaves {n} cases;  the second one needs the {w}.",
    "Let me recall how a {w} behaves when {n} of them meet.",
    "用户想了解杭州和{w}，我应该先说明{n}个要点。",
    "A list would be too long 🤔, so {n} sentences about the {w} will do.",
    "If the {w} fails, the other {n} still hold.\n",
    'Careful: "{w}" is quoted, and {n} is only a guess.',
    "Now the order:  {w}, then the rest, {n} in all.",
    "然后再检查一遍{w}，共有{n}处。",
    "I will answer plainly and mention the {w} once, near line {n}.",
)
OPENERS = (
    "Here is the short answer: the {w} decides it, in {n} of all cases.",
    "Yes, with one exception: a {w} above {n} behaves differently.",
    "Start with the {w}; everything after step {n} follows from it.",
    "简单来说，关键是{w}，大约需要{n}分钟。",
    "In one line:  take the {w}, wait {n} seconds, and look again.",
)
SENTENCES = (
    "A stream is a row of small pieces, and the {w} carries number {n}.",
    "When the connection breaks, the reader keeps what the {w} has sent.",
    "That is why the *{w}* comes first, and the other {n} come later.",
    "数据流由{n}个片段组成，每个片段都和{w}有关。",
    "Nobody has to repeat the {w}  —  not even after {n} attempts.",
    "杭州的西湖和{w}都很有名，一年约有{n}万人来访。🌊",
    "It costs {n} steps, which a {w} hardly notices 🚀.",
    "The {w}'s name is naïve, its value is {n} °C.",
    "如果中断了，就从{w}的第{n}个字继续写下去。",
    "So the {w} is exact: {n} in, {n} out.",
)
BULLETS = (
    "- **{w}** 🍎 takes {n} ms\n- the rest 🍌 waits\n- last, the {w} 🍒\n",
    "1. Open the {w}.\n2. Count to {n}.\n3. Close it again.\n",
    "| part | share |\n|---|---|\n| {w} | {n} % |\n| other | the rest |\n",
)
CODE = (
    '```python\ndef {w}(a, b):\n    """Return the sum."""\n    total = a + b\n    return total\n\n\n'
    "print({w}(2, {n}))\n```\n",
    '```json\n{{"name": "{w}",\n  "parts": [{n}, 2],\n  "text": "data: [DONE]\\n\\n"}}\n```\n',
    '```sh\nfor i in 1 2 {n}; do\n\techo "{w} $i"   # three lines\ndone\n```\n',
)
CLOSERS = (
    "All {n} parts of the {w} are covered;   nothing is left.  \n",
    "That is all there is to a {w}. 👩‍💻🎉",
    "Ask again if the {w} needs more than {n} words!",
    "以上就是关于{w}的全部内容。🍵",
)
SEPARATORS = ("\n\n", "\n\n\n", "\n\n", " \n\n")
WORDS = (
    *("harbour", "lantern", "river", "compass", "violin", "cedar", "glacier", "meadow", "copper", "orchard"),
    *("signal", "ladder", "thunder", "pebble", "window", "garden", "anchor", "marble", "saddle", "beacon"),
)
CALL_REMARKS = ("Let me check.\n\n", "One moment, the tool knows.\n\n", "", "查一下。\n\n")
ARGUMENT_WORDS = ("Paris, France", "Rome", "杭州", "São Paulo", "New York", "Reykjavík 🌋")
# A model that has lost its way says these: a continuation of a wrong prefix is seen at once.
STRAY_WORDS = tuple(f" {word}" for word in (
    "umbrella", "seven", "whereas", "blue", "(sic)", "tomorrow", "…", "mumble", "42", "錯誤",
    "perhaps", "zigzag", "therefore", "??", "spoon", "\n", "lost", "--", "again,", "🌀",
))  # fmt: skip
# These characters have no token of their own: they arrive as half characters.
SPLIT_CHARACTERS = "了龙钱塘游繁检遍°—"
# Tokens that begin in the middle of a character, as byte-level vocabularies have them.
STRADDLING = (("了", 2, "解杭"), ("检", 1, "查"), ("遍", 2, ""))
