"""Chat templates of published models, and conversations that are tried with them."""
