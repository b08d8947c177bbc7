"""Optional fields that requests of other servers have and this server's do not.

Programs written for these servers send the fields that they do not use as null, which asks for nothing. Any other value
is refused like an unknown field.
"""

from typing import Any

from pydantic import model_validator

from genai_server.generation.parameters.base import Wire

_OF_VLLM = (
    "activation add_generation_prompt add_special_tokens additional_data allowed_token_ids bad_words best_of "
    "chat_template chat_template_kwargs continue_final_message documents ec_transfer_params echo embed_dtype "
    "encoding_format endianness guided_choice guided_decoding_backend guided_grammar guided_json guided_regex "
    "guided_whitespace_pattern include_reasoning kv_transfer_params length_penalty logits_processors "
    "logprob_token_ids media_io_kwargs mm_processor_kwargs normalize prompt_embeds prompt_logprobs "
    "repetition_detection request_id response_format return_prompt_text return_token_ids return_token_offsets "
    "return_token_strs return_tokens_as_token_ids routed_experts_prompt_start session_id skip_special_tokens softmax "
    "spaces_between_special_tokens stream_interval structural_tag thinking_token_budget truncate_prompt_tokens "
    "truncation_side use_activation use_beam_search vllm_xargs watermarking"
)
_OF_SGLANG = (
    "bootstrap_host bootstrap_port bootstrap_room custom_labels custom_logit_processor custom_params "
    "data_parallel_rank disagg_prefill_dp_rank ebnf extra_key images_config input_ids json_schema lora_path "
    "max_dynamic_patch min_dynamic_patch ngram_corpus_id no_stop_trim priority regex return_cached_tokens_details "
    "return_hidden_states return_routed_experts rid routed_dp_rank routed_experts_start_len separate_reasoning "
    "session_params stop_regex stream_reasoning"
)
_OF_LLAMA_CPP = (
    "chat_format dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers "
    "dynatemp_exponent dynatemp_range grammar grammar_lazy grammar_triggers id_slot image_data lora min_keep mirostat "
    "mirostat_eta mirostat_tau n_discard n_indent n_keep n_predict n_probs parse_tool_calls penalize_nl "
    "post_sampling_probs preserved_tokens reasoning_budget reasoning_format repeat_penalty response_fields "
    "return_tokens samplers t_max_predict_ms t_max_prompt_ms tfs_z thinking_forced_open timings_per_token top_n_sigma "
    "typical_p xtc_probability xtc_threshold"
)
# Of vLLM's, SGLang's and llama.cpp's requests.
OTHER_FIELDS = frozenset(f"{_OF_VLLM} {_OF_SGLANG} {_OF_LLAMA_CPP}".split())


class NullFields(Wire):
    """Accepts null for optional fields of other servers."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not any(value is None for value in given.values()):
            return given
        return {name: value for name, value in given.items() if value is not None or name not in OTHER_FIELDS}
