"""How a judge is asked: every key that says so has its effect, or is refused before anything is asked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import Server

from oger_recipe.base.errors import RecipeError
from oger_recipe.grading.verifiers import look_in
from oger_recipe.lab import tiny_policy
from oger_recipe.models.keys import APIS, PLACES
from oger_recipe.models.places import Cached
from oger_recipe.models.server import ServerPlace
from oger_recipe.rewards.kinds.classifier import CritiqueKeys
from oger_recipe.rewards.kinds.judge import JudgeKeys
from oger_recipe.rewards.kinds.pairwise import PairwiseKeys
from oger_recipe.rewards.kinds.step_judge import StepJudgeKeys
from oger_recipe.rewards.place import Sampling, VerdictCache

READ = "\n\ndef rm_postprocess(results):\n    return [float(result) for result in results]\n"
PLUGINS = {
    "template.py": (
        "def rm_preprocess(prompts, responses, tgt_tokenizer):\n"
        "    turns = [[{'role': 'user', 'content': f'{p} {r} Right?'}] for p, r in zip(prompts, responses)]\n"
        "    return tgt_tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)"
    ),
    "plain.py": (
        "def rm_preprocess(prompts, responses, tgt_tokenizer):\n"
        "    return [f'{p} {r} Right?' for p, r in zip(prompts, responses)]"
    ),
}
# What a template writes of the roles, the argument and itself.
TEMPLATE = "{name}{{% if enable_thinking is defined and not enable_thinking %}}(silent){{% endif %}}" \
           "{{% for each in messages %}}[{{{{ each.role }}}}]{{{{ each.content }}}}{{% endfor %}}"  # fmt: skip
STRICT, SILENT = {"system_prompt": "Be strict."}, {"chat_template_kwargs": {"enable_thinking": False}}
MORE = {"nothing more": {}, "a chat's": STRICT | SILENT, "a server's": {"extra_body": {"top_k": 20}}}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plugins, and tokenizers of a model and of another name."""
    folder = tmp_path_factory.mktemp("desk")
    for name, text in PLUGINS.items():
        (folder / name).write_text(text + READ)
    for name in ("model", "other"):
        tokenizer = tiny_policy.build_tokenizer([])
        tokenizer.chat_template = TEMPLATE.format(name=name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def found(desk: Path) -> Iterator[None]:
    look_in([str(desk)])
    yield
    look_in([])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    choice = {"index": 0, "text": "1", "message": {"content": "1"}, "finish_reason": "stop"}
    server.answer = lambda prompt, count: (200, {"choices": [choice]})
    yield server
    server.end()


Prompts = dict[str, str | RecipeError]


def _prompt_of(keys: JudgeKeys, written: Prompts) -> str:
    """The prompt that an entry's plugin writes; those with the same plugin and tokenizer share what was written."""
    here = None if keys.chats else (keys.tokenizer_files, keys.of_chat_template)
    name = json.dumps([keys.plugin, here])
    if name not in written:
        plugin = keys.questions()[0].plugin
        assert plugin is not None
        try:
            plugin.start()
            (prompt,) = plugin.preprocess(["2 + 2?"], ["4"])
            assert isinstance(prompt, str), prompt
            written[name] = prompt
        except RecipeError as error:
            written[name] = error
        finally:
            plugin.close()
    if isinstance(found := written[name], RecipeError):
        raise found
    return found


TABLE = list(itertools.product(PLACES, (None, *APIS), (None, "other"), ("binary", *PLUGINS), MORE))


def test_no_combination_of_keys_is_accepted_and_ignored(desk: Path, server: Server) -> None:
    """A tokenizer takes a second to load: the model's own is loaded for one plugin alone."""
    accepted, written = 0, Prompts()
    for place, api, tokenizer, plugin, more in TABLE:
        given = {"place": place, "api": api, "tokenizer": tokenizer and str(desk / tokenizer)} | MORE[more]
        entry = {"model": str(desk / "model"), "plugin": plugin}
        entry |= {name: value for name, value in given.items() if value is not None}
        entry |= {"url": server.url} if place == "server" else {}
        chats = place == "server" and (api or ("completions" if tokenizer else "chat")) == "chat"
        refused = (
            (api is not None and place != "server")
            or (chats and (tokenizer is not None or plugin == "template.py"))
            or (more == "a server's" and place != "server")
            or (more == "a chat's" and plugin == "plain.py" and not chats)
        )
        try:
            if problems := [*JudgeKeys.problems(entry)]:
                raise RecipeError("; ".join(problems))
            keys = JudgeKeys.of(entry)
            if not (chats or tokenizer or (plugin == "template.py" and more == "nothing more")):
                continue
            prompt = _prompt_of(keys, written)
        except RecipeError as error:
            said = str(error)
            assert refused and any(name in said for name in (*given, *MORE[more])), (entry, said)
            continue
        assert not refused, entry
        accepted += 1
        _assert_effect(keys, prompt, tokenizer or "model", server)
    assert accepted == 2 * (1 + 3 + 2) + 6 + 8 + 6 + 1 + 8


def _assert_effect(keys: JudgeKeys, prompt: str, tokenizer: str, server: Server) -> None:
    """Of every key that is given, on what the model reads."""
    system, silent = keys.system_prompt, keys.chat_template_kwargs is not None
    if not keys.chats and keys.plugin != "plain.py":
        assert prompt.startswith(tokenizer + "(silent)" * silent + ("[system]Be strict." if system else "") + "[user]")
        assert ("4 Right?" in prompt) is (keys.plugin == "template.py") and prompt.count("[user]") == 1
    elif keys.plugin == "plain.py":
        assert prompt == "2 + 2? 4 Right?"
    else:
        assert "[user]" not in prompt and "<answer-" in prompt
    if keys.runs_on != "server":
        return
    before = len(server.asked)
    (reply,) = ServerPlace(keys).generate([prompt], Sampling())
    ((path, body),) = server.asked[before:]
    assert reply.text == "1" and path == ("/v1/chat/completions" if keys.chats else "/v1/completions")
    assert body.get("top_k") == (keys.extra_body or {}).get("top_k")
    if keys.chats:
        turns = [{"role": "system", "content": system}] if system else []
        assert body["messages"] == [*turns, {"role": "user", "content": prompt}]
        assert body.get("chat_template_kwargs") == keys.chat_template_kwargs
    else:
        assert body["prompt"] == prompt and "chat_template_kwargs" not in body


# ---- one by one


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"extra_body": {"top_k": 2, "n": 3, "stream": True}}, "extra_body must not have n, stream, which other keys"),
        ({"extra_body": {"temperature": 1}}, "extra_body must not have temperature"),
        ({"extra_body": ["top_k"]}, "extra_body ['top_k']: it must be a mapping of names to values of JSON"),
        ({"extra_body": {3: 1}}, "extra_body {3: 1}: it must be a mapping of names to values of JSON"),
        ({"extra_body": {"stop": float("nan")}}, "extra_body {'stop': nan}: it must be a mapping"),
        (
            {"chat_template_kwargs": {"tokenize": True}},
            "chat_template_kwargs must not have tokenize, which other keys",
        ),
        ({"system_prompt": 3}, "system_prompt 3: it must be a text"),
    ],
)
def test_what_the_recipe_itself_says_cannot_be_said_otherwise(keys: dict[str, Any], said: str) -> None:
    (problem,) = JudgeKeys.problems({"model": "judge", "url": "http://host/v1", "plugin": "binary", **keys})
    assert problem.startswith(said)


@pytest.mark.parametrize(
    ("of", "entry", "plugin"),
    [
        (JudgeKeys, {}, "lambda p, r: t.apply_chat_template([{'role': 'user', 'content': r}], tokenize=False)"),
        (PairwiseKeys, {}, "lambda p, r: t.encode(r[0] + r[1])"),
        (StepJudgeKeys, {"scorer": "judge"}, "lambda p, r: t(r[0] + r[1])['input_ids']"),
    ],
)
def test_a_plugin_that_needs_a_tokenizer_says_which_key_names_it(
    desk: Path, of: type, entry: dict[str, Any], plugin: str
) -> None:
    """Before anything is asked, and of each kind with what it judges."""
    body = f"def rm_preprocess(ps, rs, t):\n    write = {plugin}\n    return [write(p, r) for p, r in zip(ps, rs)]"
    (desk / f"{of.__name__}.py").write_text(body + READ)
    entry = {"model": "judge", "url": "http://127.0.0.1:9/v1", "plugin": f"{of.__name__}.py"} | entry
    (problem,) = of.problems(entry)  # type: ignore[attr-defined]
    assert f"{of.__name__}.py:2): tgt_tokenizer is None where a server puts the chat template around" in problem
    assert problem.endswith("name the judge's tokenizer by the key tokenizer, or return the text alone")
    assert not [*of.problems(entry | {"tokenizer": str(desk / "other")})]  # type: ignore[attr-defined]


def test_what_a_plugin_has_against_an_example_is_no_reason_to_refuse_it(desk: Path) -> None:
    """Its data may be of another kind; and not every None is a tokenizer."""
    for number, text in enumerate(("json.loads(p)['turns']", "re.match('x', p).group()", "{}[p]")):
        body = f"import json, re\ndef rm_preprocess(ps, rs, t):\n    return [{text} for p in ps]"
        (desk / f"strict{number}.py").write_text(body + READ)
        entry = {"model": "judge", "url": "http://127.0.0.1:9/v1", "plugin": f"strict{number}.py"}
        assert not [*JudgeKeys.problems(entry)]


@pytest.mark.parametrize(
    ("template", "plugin", "keys", "said"),
    [
        ("{{ messages[0].content }}", "binary", SILENT, "chat_template_kwargs: the chat template of {model} does not "
         "read enable_thinking; leave it out"),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}", "binary", STRICT,
         "system_prompt, chat_template_kwargs: the chat template says: no system here"),
        ("{{ messages }}", "own.py", STRICT, "system_prompt is set, and rm_preprocess writes a system message of its"),
    ],
)  # fmt: skip
def test_what_a_template_cannot_do_is_said_when_the_plugin_starts(
    template: str, plugin: str, keys: dict[str, Any], said: str, desk: Path, tmp_path: Path
) -> None:
    own = "[[{'role': 'system', 'content': 'Mine.'}, {'role': 'user', 'content': r}] for r in rs]"
    body = f"def rm_preprocess(ps, rs, t):\n    return t.apply_chat_template({own}, tokenize=False)"
    (desk / "own.py").write_text(body + READ)
    tokenizer = tiny_policy.build_tokenizer([])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    started = JudgeKeys(model=str(tmp_path), plugin=plugin, **keys).questions()[0].plugin
    assert started is not None
    with pytest.raises(RecipeError) as refused:
        started.start()
    started.close()
    assert said.format(model=tmp_path) in str(refused.value)


def test_another_system_prompt_gets_no_old_reply(server: Server, tmp_path: Path) -> None:
    """Nor do other arguments, or another body; the order of their names does not count."""
    cache = VerdictCache(tmp_path)
    entry = {"model": "judge", "url": server.url, "plugin": "binary"}
    before = len(server.asked)
    for keys in (
        {}, STRICT, {"system_prompt": "Be kind."}, SILENT, {"chat_template_kwargs": {"enable_thinking": True}},
        {"extra_body": {"top_k": 20, "min_p": 0.1}}, {"extra_body": {"min_p": 0.1, "top_k": 20}}, STRICT, {},
    ):  # fmt: skip
        judge = JudgeKeys.of(entry | keys)
        Cached(ServerPlace(judge), judge, cache).generate(["Right?"], Sampling())
    assert len(server.asked) - before == 6


def test_a_critic_is_asked_by_chat_and_its_head_is_a_head(server: Server) -> None:
    entry = {"model": "head", "critic": "critic", "url": server.url, **STRICT}
    assert not [*CritiqueKeys.problems(entry)]
    critic, head = CritiqueKeys.of(entry).models
    assert critic.chats and not head.chats and critic.of_chat_template == ("Be strict.", {})
