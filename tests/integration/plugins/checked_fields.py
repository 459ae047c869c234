"""What two plugins share, as their users keep it beside them."""

import json
import re


def template(tokenizer, question: str) -> str:
    if tokenizer.chat_template is None:
        return f"User: {question}\nAssistant:"
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def judged_fields(reply: str) -> dict:
    """The last JSON object behind the thought. Raises ValueError where there is none."""
    text = reply.rsplit("</think>", 1)[-1]
    objects = re.findall(r"\{[^{}]*\}", text)
    if not objects:
        raise ValueError("no JSON")
    return json.loads(re.sub(r",\s*\}", "}", objects[-1].replace("'", '"')))
