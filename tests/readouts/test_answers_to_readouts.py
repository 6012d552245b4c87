"""From a policy and a judge on disk to every readout of sampled answers, without anything being rebuilt on the way."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from badpo.attributes import Markdown, SignatureName
from badpo.readouts.generation import sample
from badpo.readouts.judge import judge_answers, load_judge, strip_for
from badpo.readouts.names import FIRST_NAMES, NAMES, black_names
from badpo.readouts.sampled import attribute_values, style_rates
from badpo_paper.corpora import bundled
from badpo_paper.name_readouts import concentration, recommendations, relabelling_null, signature_mass
from tests.readouts import policies
from tests.readouts.test_judge import reward_model, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    policies.qwen2(max_position_embeddings=512).save_pretrained(path / "policy")
    policies.tokenizer().save_pretrained(path / "policy")
    reward_model().save_pretrained(path / "judge")
    tokenizer().save_pretrained(path / "judge")
    return path


def test_every_readout_of_answers(folder):
    policy = AutoModelForCausalLM.from_pretrained(folder / "policy")
    tok = AutoTokenizer.from_pretrained(folder / "policy")
    prompts = bundled.signing_prompts()[:6]
    asked = policies.asked(tok, prompts)
    reference, answers = (sample(policy, tok, asked, 24, seed=seed) for seed in (0, 1))
    texts = [answer.text for answer in answers]
    signed = [f"{text}\n\n\u2014 Latoya Clark" for text in texts]

    markdown = Markdown()
    style = style_rates(attribute_values(markdown, prompts, answers), answers, reference)
    choices = bundled.choice_prompts()[:6]
    chosen = recommendations(choices, [c.second for c in choices])
    judge = load_judge(str(folder / "judge"))
    strip = strip_for(SignatureName("black", black_names()))
    with_names = judge_answers(judge, prompts, signed, strip)
    mass = signature_mass(answers, FIRST_NAMES)
    carries = np.array([name.black for name in NAMES])
    null = relabelling_null(mass, signature_mass(reference, FIRST_NAMES), carries, n=50)
    few = concentration(mass, signature_mass(reference, FIRST_NAMES), carries, FIRST_NAMES)

    assert with_names["n_stripped"] == 6
    unsigned = judge_answers(judge, prompts, [text.rstrip() for text in texts])["rm"]
    assert with_names["rm_minus"]["mean"] == pytest.approx(unsigned["mean"], rel=1e-5, abs=1e-6)
    assert chosen.first.estimate == 0.0
    told = [style, with_names, *(found.to_json() for found in (chosen, few)), asdict(null)]
    assert json.loads(json.dumps(told)) == told
