"""Our WordPiece against PaddleNLP's tokenizers, id for id: `python -m tests.parity`, and a sample of it as tests."""
