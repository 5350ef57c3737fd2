"""Choice of sacreBLEU's tokenizer by the code of the target language."""

import re

from fourfold.errors import InputError

# Code of ISO 639, script of ISO 15924, region of ISO 3166 or UN M49, as in de, zho_Hans or zh-TW.
_CODE = re.compile(r"([a-z]{2,3})(?:[-_]([a-z]{4}))?(?:[-_](?:[a-z]{2}|\d{3}))?", re.IGNORECASE)
# Languages and scripts by tokenizer. Those of `char` have no spaces between words, or hardly any.
_CODES = {
    "zh": "cdo chi cjy cmn gan hak hsn lzh nan wuu yue zh zho bopo hani hans hant",
    "ja-mecab": "ja jpn ryu hira hrkt jpan kana",
    "ko-mecab": "ko kor hang kore",
    "char": "bo bod bur dz dzo khm km lao lo mnw my mya nod rki shn th tha tib tts"
    " ahom bali cham java khmr lana laoo mymr tale talu tavt thai tibt",
}
_TOKENIZERS = {code: name for name, codes in _CODES.items() for code in codes.split()}


def bleu_tokenizer(language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language; none downloads a model.

    The name is zh (Chinese), ja-mecab (Japanese), ko-mecab (Korean), char (other scripts without
    spaces between words), or 13a (all others). The script of the code decides, or else the
    language.

    Args:
        language: Code of ISO 639, perhaps with a script and a region, such as de, zho_Hans or
            pt-BR; "" means an unknown language.

    Example:
        >>> [bleu_tokenizer(code) for code in ("", "de", "zho_Hans", "th")]
        ['13a', '13a', 'zh', 'char']
    """
    found = _CODE.fullmatch(language)
    if found:
        return _TOKENIZERS.get((found[2] or found[1]).lower(), "13a")
    if language:
        message = 'must be the code of a language, such as de, pt_BR or zho_Hans, or ""'
        raise InputError(f"{message}, got {language!r}", option="data.tgt_lang")
    return "13a"
