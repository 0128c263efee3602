"""All rules for lines, in the order in which they are tried."""

from __future__ import annotations

from logparse.rules.llamacpp import LLAMACPP_RULES
from logparse.rules.rule import Rule
from logparse.rules.sglang import SGLANG_RULES
from logparse.rules.stoker import STOKER_RULES
from logparse.rules.unled import UNLED_RULES
from logparse.rules.vllm import VLLM_RULES

LED_RULES = (*VLLM_RULES, *STOKER_RULES, *LLAMACPP_RULES, *SGLANG_RULES)
"""Those that begin with fixed text, by which they are found."""
ALL_RULES: tuple[Rule, ...] = (*LED_RULES, *UNLED_RULES)
