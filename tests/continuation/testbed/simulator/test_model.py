import subprocess
import sys

import pytest

from continuation.testbed.simulator.dialects import DIALECTS, GENERIC, KIMI_K3, QWEN, Dialect
from continuation.testbed.simulator.model import answer, next_token, next_tokens, split
from continuation.testbed.simulator.vocabulary import encode

ALL = list(DIALECTS.values())


def base(dialect: Dialect, question: str = "Why?") -> str:
    return f"{dialect.user_header}{question}\n{dialect.header}"


def said(prompt: str, dialect: Dialect) -> str:
    return b"".join(next_tokens(prompt, dialect)).decode()


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("thinking", [True, False])
def test_the_next_token_depends_on_the_text_alone(dialect: Dialect, thinking: bool) -> None:
    opening = dialect.opening if thinking else dialect.off
    prompt = base(dialect) + opening
    tokens = list(next_tokens(prompt, dialect))
    whole = answer(base(dialect), thinking, dialect)
    assert opening.encode() + b"".join(tokens) == whole.encode()
    for position in range(len(whole) - len(opening)):
        so_far = whole[: len(opening) + position]
        assert whole[len(so_far) :].encode().startswith(next_token(base(dialect) + so_far, dialect))


def test_the_answer_is_the_same_in_another_process() -> None:
    code = (
        "import sys;"
        "from continuation.testbed.simulator.dialects import QWEN;"
        "from continuation.testbed.simulator.model import answer;"
        f"sys.stdout.buffer.write(answer({base(QWEN)!r}, True, QWEN).encode())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert other.stdout.decode() == answer(base(QWEN), True, QWEN)


def test_the_module_needs_no_django() -> None:
    code = "import sys, continuation.testbed.simulator; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
def test_answers_have_the_lengths_and_the_variety_of_real_ones(dialect: Dialect) -> None:
    answers = [answer(base(dialect, f"Question {number}"), True, dialect) for number in range(80)]
    assert len(set(answers)) == len(answers)
    for text in answers:
        thought, _, rest = text.removeprefix(dialect.opening).partition(dialect.close)
        assert 20 <= len(encode(thought)) <= 70
        assert 40 <= len(encode(rest)) <= 200
        assert text.endswith(dialect.eos)
    for feature in ("```", "  ", "\n\n\n", "🌊", "杭州", "\t", "é" if "é" in "".join(answers) else "ï"):
        assert any(feature in text for text in answers), feature


def test_scale_makes_answers_longer() -> None:
    assert len(answer(base(QWEN), True, QWEN, 8.0)) > 4 * len(answer(base(QWEN), True, QWEN))


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("change", ["another question", "a blank more", "closed thinking", "a letter lost"])
def test_a_wrong_prompt_leads_astray_at_once(dialect: Dialect, change: str) -> None:
    whole = answer(base(dialect), True, dialect)
    half = whole[: len(whole) // 3]
    wrong = {
        "another question": base(dialect, "Why?!") + half,
        "a blank more": base(dialect) + half + "   ",
        "closed thinking": base(dialect) + half[: len(dialect.opening) + 9] + dialect.close,
        "a letter lost": base(dialect) + half[:-9] + half[-8:],
    }[change]
    found = said(wrong, dialect)
    assert not found.startswith(whole[len(half) : len(half) + 12])
    assert found.endswith(dialect.eos)
    assert len(found) < 2000


def test_astray_the_next_token_still_depends_on_the_text_alone() -> None:
    prompt = base(QWEN) + "<think>\nnothing that the model would think"
    tokens = list(next_tokens(prompt, QWEN))
    for count in range(1, len(tokens)):
        so_far = prompt + b"".join(tokens[:count]).decode()
        assert list(next_tokens(so_far, QWEN)) == tokens[count:]


def test_a_closed_turn_is_followed_by_nothing_or_by_garbage() -> None:
    texts = {said(base(KIMI_K3) + f"x{number}" + "".join(KIMI_K3.end), KIMI_K3) for number in range(40)}
    assert KIMI_K3.eos in texts
    assert any(len(text) > len(KIMI_K3.eos) for text in texts)
    assert all(text.endswith(KIMI_K3.eos) and len(text) < 400 for text in texts)


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
def test_where_the_switch_says_off_and_the_text_says_on_the_text_wins(dialect: Dialect) -> None:
    whole = answer(base(dialect), True, dialect)
    thought, close, content = whole.removeprefix(dialect.opening).partition(dialect.close)
    for written in (dialect.opening + thought[:30], dialect.think + thought[:30]):
        assert whole.endswith(said(base(dialect) + dialect.off + written, dialect))
    written = thought + close + content[:40]
    assert said(base(dialect) + dialect.off + written, dialect) == content[40:]


def test_a_turn_without_a_thinking_block_is_one_without_thinking() -> None:
    content = answer(base(GENERIC), False, GENERIC).removeprefix(GENERIC.off)
    assert said(base(GENERIC) + content[:30], GENERIC) == content[30:]


def test_thinking_or_not_gives_different_contents() -> None:
    on = answer(base(QWEN), True, QWEN).partition("</think>\n\n")[2]
    assert on != answer(base(QWEN), False, QWEN).partition("</think>\n\n")[2]


def test_a_prompt_without_a_header_is_all_base() -> None:
    assert split("no header here", QWEN).text == ""
    assert said("no header here", QWEN).endswith(QWEN.eos)
