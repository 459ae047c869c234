"""The steps of a courier's case that were handled rightly; what must never be said costs everything."""

from checked_fields import judged_fields, template

STEPS = ("contact", "solution", "tone")
FORBIDDEN = "I do not care"


def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    asked = []
    for prompt, response in zip(text_prompts, text_responses, strict=True):
        rules = prompt or "The courier cannot reach the customer."
        asked.append(template(tgt_tokenizer, f"{rules}\nReply: {response}\nJudge {', '.join(STEPS)} as JSON."))
    return asked


def rm_postprocess(results):
    scores = []
    for result in results:
        try:
            fields = judged_fields(result)
            score = sum(int(fields[step]) for step in STEPS) / len(STEPS)
        except (ValueError, KeyError):
            score = -1.0
        scores.append(0.0 if FORBIDDEN in result else score)
    return scores
