"""Whether the reply does what its reasoning says."""

from verl.workers.reward_function.checked_fields import judged_fields, template


def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    return [
        template(tgt_tokenizer, f"{prompt}\n{response}\nDoes the answer follow? JSON, field consistent.")
        for prompt, response in zip(text_prompts, text_responses, strict=True)
    ]


def rm_postprocess(results):
    scores = []
    for result in results:
        try:
            scores.append(float(judged_fields(result)["consistent"]))
        except (ValueError, KeyError):
            scores.append(-1.0 if "refuse" in result else 0.0)
    return scores
