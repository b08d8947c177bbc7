"""The groups in which documentation and `--help` show the settings, the most important ones first."""

GROUPS: dict[str, tuple[str, ...]] = {
    "The ten that matter first": (
        *("model_dir", "models", "host", "port", "device", "threads", "max_length", "max_batch_size"),
        *("api_keys", "admin_api_key"),
    ),
    "Models": (
        *("model_name", "model_aliases", "adapters", "models_dir", "max_models", "idle_unload"),
        *("chat_template", "tool_parser"),
    ),
    "Memory and speed": (
        *(
            "scheduler",
            "kv_cache_bytes",
            "kv_cache_type",
            "attention_type",
            "exact",
            "speculation",
            "draft_memory_bytes",
            "draft_model",
            "prefill_chunk",
        ),
        *("itl_target", "cache_dir", "prefix_cache_bytes", "prefix_cache_dir", "prefix_cache_type"),
    ),
    "Queue, time and restarts": (
        *("max_queue", "max_queue_tokens", "request_timeout", "grammar_timeout", "drain_timeout", "step_timeout"),
        *("load_timeout", "max_restarts", "preparation_processes", "max_waiting_grammar_bytes", "pid_file"),
    ),
    "Access": (
        *("api_key_file", "insecure", "max_concurrent_per_key", "rate_per_key", "shared_prefix_cache", "cors_origins"),
        *("tls_cert", "tls_key", "forwarded_allow_ips"),
    ),
    "Requests and connections": (
        *(
            "strict",
            "default_max_tokens",
            "thinking_budget",
            "cap_max_tokens",
            "max_tool_rounds",
            "mcp_hosts",
            "allow_special_tokens",
            "max_body_bytes",
            "max_bodies_bytes",
        ),
        *("max_header_bytes", "idle_timeout", "body_timeout", "upload_timeout", "stall_timeout"),
    ),
    "Images and recordings": (
        *("encoder_weights", "image_hosts", "max_media", "max_media_bytes", "max_image_pixels", "max_request_pixels"),
        *("max_waiting_pixels", "max_media_tokens", "media_timeout"),
        *("max_media_body_bytes", "encoder_cache_bytes", "max_audio_seconds", "audio_timeout"),
        *("max_audio_body_bytes", "max_audio_bodies_bytes", "max_waiting_audio_seconds", "max_prepared_bytes"),
    ),
    "Stored responses, files and batches": (
        *("response_store_size", "response_store_bytes", "response_store_file", "files_dir", "max_file_bytes"),
        *("files_bytes_per_key", "files_bytes", "max_batch_requests"),
    ),
    "Logs, metrics and traces": (
        *(
            "log_level",
            "log_format",
            "metrics",
            "metrics_prefix",
            "metrics_keys",
            "usage_file",
            "otlp_endpoint",
            "telemetry",
            "kv_events",
        ),
        "kv_events_topic",
    ),
    "Profiles": ("profile_dir", "profile_max_files", "profile_max_bytes", "profile_max_age", "profile_max_rows"),
    "Processes and configuration": ("workers", "reload", "ui", "config", "options"),
}
