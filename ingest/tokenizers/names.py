"""Names of PaddleNLP's built-in WordPiece vocabularies: the file that each stands for.

The facts are those of PaddleNLP 2.8.1 (`pretrained_resource_files_map`, `pretrained_init_configuration` of the classes
below), so that ingest needs no Paddle; a test compares them. Names that are no WordPiece over a `vocab.txt` are left
out (`ernie-tiny` is SentencePiece, `roberta-base` is BPE).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

_PADDLENLP = "paddlenlp/models/transformers/"
_HAPI = "paddle-hapi/models/bert/"


@dataclass(frozen=True, slots=True)
class Builtin:
    """What PaddleNLP knows of a name."""

    kind: str  # tokenizer class
    lowercase: bool
    path: str  # of the vocabulary, below the store's base address


#: (tokenizer class, lower case): file -> names
_FILES: dict[tuple[str, bool], dict[str, str]] = {
    ("ErnieTokenizer", True): {
        _PADDLENLP + "ernie/vocab.txt": "ernie-1.0 ernie-1.0-base-zh ernie-1.0-large-zh-cw",
        _PADDLENLP + "ernie/ernie_1.0_base_zh_cw_vocab.txt": "ernie-1.0-base-zh-cw",
        _PADDLENLP + "ernie_2.0/ernie_2.0_base_zh_vocab.txt": "ernie-2.0-base-zh",
        _PADDLENLP + "ernie_2.0/ernie_2.0_large_zh_vocab.txt": "ernie-2.0-large-zh",
        _PADDLENLP + "ernie_v2_base/vocab.txt": (
            "ernie-2.0-base-en ernie-2.0-base-en-finetuned-squad rocketqav2-en-marco-cross-encoder "
            "rocketqav2-en-marco-query-encoder rocketqav2-en-marco-para-encoder uie-base-en "
            "ernie-search-base-dual-encoder-marco-en"
        ),
        _PADDLENLP + "ernie_v2_large/vocab.txt": "ernie-2.0-large-en ernie-search-large-cross-encoder-marco-en",
        _PADDLENLP + "ernie-gen-base-en/vocab.txt": "ernie-gen-base-en",
        _PADDLENLP + "ernie-gen-large/vocab.txt": "ernie-gen-large-en",
        _PADDLENLP + "ernie-gen-large-430g/vocab.txt": "ernie-gen-large-en-430g",
        _PADDLENLP + "rocketqa/rocketqa-zh-dureader-vocab.txt": (
            "rocketqa-zh-dureader-query-encoder rocketqa-zh-dureader-para-encoder rocketqa-zh-dureader-cross-encoder"
        ),
        _PADDLENLP + "rocketqa/rocketqa-v1-marco-vocab.txt": (
            "rocketqa-v1-marco-query-encoder rocketqa-v1-marco-para-encoder rocketqa-v1-marco-cross-encoder"
        ),
        _PADDLENLP + "ernie_3.0/ernie_3.0_base_zh_vocab.txt": (
            "ernie-3.0-base-zh ernie-3.0-tiny-base-v1-zh rocketqa-zh-base-query-encoder "
            "rocketqa-zh-base-para-encoder rocketqa-base-cross-encoder uie-base uie-senta-base "
            "uie-base-answer-extractor uie-base-qa-filter"
        ),
        _PADDLENLP + "ernie_3.0/ernie_3.0_xbase_zh_vocab.txt": "ernie-3.0-xbase-zh",
        _PADDLENLP + "ernie_3.0/ernie_3.0_medium_zh_vocab.txt": (
            "ernie-3.0-medium-zh ernie-3.0-tiny-medium-v1-zh rocketqa-zh-medium-query-encoder "
            "rocketqa-zh-medium-para-encoder rocketqa-medium-cross-encoder uie-medium uie-senta-medium"
        ),
        _PADDLENLP + "ernie_3.0/ernie_3.0_mini_zh_vocab.txt": (
            "ernie-3.0-mini-zh ernie-3.0-tiny-mini-v1-zh rocketqa-zh-mini-query-encoder "
            "rocketqa-zh-mini-para-encoder rocketqa-mini-cross-encoder uie-mini uie-senta-mini"
        ),
        _PADDLENLP + "ernie_3.0/ernie_3.0_micro_zh_vocab.txt": (
            "ernie-3.0-micro-zh ernie-3.0-tiny-micro-v1-zh rocketqa-zh-micro-query-encoder "
            "rocketqa-zh-micro-para-encoder rocketqa-micro-cross-encoder uie-micro uie-senta-micro"
        ),
        _PADDLENLP + "ernie_3.0/ernie_3.0_nano_zh_vocab.txt": (
            "ernie-3.0-nano-zh ernie-3.0-tiny-nano-v1-zh rocketqa-zh-nano-query-encoder "
            "rocketqa-zh-nano-para-encoder rocketqa-nano-cross-encoder uie-nano uie-senta-nano"
        ),
        _PADDLENLP + "ernie_3.0/ernie_3.0_tiny_base_v2_vocab.txt": "ernie-3.0-tiny-base-v2-zh",
        _PADDLENLP + "ernie_3.0/ernie_3.0_tiny_medium_v2_vocab.txt": "ernie-3.0-tiny-medium-v2-zh",
        _PADDLENLP + "ernie_3.0/ernie_3.0_tiny_mini_v2_vocab.txt": "ernie-3.0-tiny-mini-v2-zh",
        _PADDLENLP + "ernie_3.0/ernie_3.0_tiny_mini_v2_en_vocab.txt": "ernie-3.0-tiny-mini-v2-en",
        _PADDLENLP + "ernie_3.0/ernie_3.0_tiny_micro_v2_vocab.txt": "ernie-3.0-tiny-micro-v2-zh",
        _PADDLENLP + "ernie_3.0/ernie_3.0_tiny_nano_v2_vocab.txt": "ernie-3.0-tiny-nano-v2-zh",
        _PADDLENLP + "ernie_3.0/ernie_3.0_tiny_pico_v2_vocab.txt": "ernie-3.0-tiny-pico-v2-zh",
        _PADDLENLP + "utc/utc_large_vocab.txt": "utc-large",
        _PADDLENLP + "utc/utc_xbase_vocab.txt": "utc-xbase",
        _PADDLENLP + "utc/utc_base_vocab.txt": "utc-base",
        _PADDLENLP + "utc/utc_medium_vocab.txt": "utc-medium",
        _PADDLENLP + "utc/utc_mini_vocab.txt": "utc-mini",
        _PADDLENLP + "utc/utc_micro_vocab.txt": "utc-micro",
        _PADDLENLP + "utc/utc_nano_vocab.txt": "utc-nano",
        _PADDLENLP + "utc/utc_pico_vocab.txt": "utc-pico",
    },
    ("ErnieGramTokenizer", True): {
        _PADDLENLP + "ernie_gram_zh/vocab.txt": "ernie-gram-zh ernie-gram-zh-finetuned-dureader-robust",
    },
    ("BertTokenizer", True): {
        _HAPI + "bert-base-uncased-vocab.txt": "bert-base-uncased",
        _HAPI + "bert-large-uncased-vocab.txt": "bert-large-uncased",
        _HAPI + "bert-base-multilingual-uncased-vocab.txt": "bert-base-multilingual-uncased",
        _PADDLENLP + "simbert/vocab.txt": "simbert-base-chinese",
        _PADDLENLP + "uer/chinese_roberta_vocab.txt": (
            "uer/chinese-roberta-base uer/chinese-roberta-medium uer/chinese-roberta-6l-768h "
            "uer/chinese-roberta-small uer/chinese-roberta-mini uer/chinese-roberta-tiny"
        ),
    },
    ("BertTokenizer", False): {
        _HAPI + "bert-base-cased-vocab.txt": "bert-base-cased",
        _HAPI + "bert-large-cased-vocab.txt": "bert-large-cased",
        _HAPI + "bert-base-multilingual-cased-vocab.txt": "bert-base-multilingual-cased",
        _HAPI + "bert-base-chinese-vocab.txt": "bert-base-chinese macbert-large-chinese macbert-base-chinese",
        _PADDLENLP + "bert/bert-wwm-chinese-vocab.txt": "bert-wwm-chinese",
        _PADDLENLP + "bert/bert-wwm-ext-chinese-vocab.txt": "bert-wwm-ext-chinese",
    },
    ("RobertaChineseTokenizer", True): {
        _PADDLENLP + "roberta_base/vocab.txt": "hfl/roberta-wwm-ext",
        _PADDLENLP + "roberta_large/vocab.txt": "hfl/roberta-wwm-ext-large",
        _PADDLENLP + "rbt6/vocab.txt": "hfl/rbt6",
        _PADDLENLP + "rbt4/vocab.txt": "hfl/rbt4",
        _PADDLENLP + "rbt3/vocab.txt": "hfl/rbt3",
        _PADDLENLP + "rbtl3/vocab.txt": "hfl/rbtl3",
    },
}

BUILTIN: dict[str, Builtin] = {
    name: Builtin(kind, lowercase, path)
    for (kind, lowercase), files in _FILES.items()
    for path, names in files.items()
    for name in names.split()
}


def similar(name: str) -> list[str]:
    """Known names that may have been meant, the most similar first."""
    return get_close_matches(name, BUILTIN, n=3, cutoff=0.6)
