"""Choice of sacreBLEU's tokenizer by the code of the target language."""

import re

from fourfold.errors import InputError

# Code of ISO 639, script of ISO 15924, region of ISO 3166 or UN M49, as in de, zho_Hans or zh-TW.
_CODE = re.compile(r"([a-z]{2,3})(?:[-_]([a-z]{4}))?(?:[-_](?:[a-z]{2}|\d{3}))?", re.IGNORECASE)
# Scripts by tokenizer. Those of `char` have no spaces between words, or hardly any.
_SCRIPTS = {
    "zh": "Bopo Hani Hans Hant",
    "ja-mecab": "Hira Hrkt Jpan Kana",
    "ko-mecab": "Hang Kore",
    "char": "Ahom Bali Cham Java Khmr Lana Laoo Mymr Tale Talu Tavt Thai Tibt",
}
_TOKENIZERS = {script: name for name, scripts in _SCRIPTS.items() for script in scripts.split()}
# Languages of ISO 639-1 with such a script, and all others, for use without Babel.
_UNSPACED = {"bo": "Tibt", "dz": "Tibt", "ja": "Jpan", "km": "Khmr", "ko": "Kore", "lo": "Laoo"}
_UNSPACED |= {"my": "Mymr", "th": "Thai", "zh": "Hans"}
_SPACED = """aa ab ae af ak am an ar as av ay az ba be bg bi bm bn br bs ca ce ch co cr cs cu cv cy
    da de dv ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz
    ia id ie ig ii ik io is it iu jv ka kg ki kj kk kl kn kr ks ku kv kw ky la lb lg li ln lt lu lv
    mg mh mi mk ml mn mr ms mt na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm
    rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg ti tk tl tn to tr
    ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zu"""


def bleu_tokenizer(language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language.

    The tokenizer depends on the script, which is that of the code, or else the usual script of the
    language. No tokenizer of the result downloads a model.

    Args:
        language: Code of ISO 639 with two or three letters, perhaps with a script and a region,
            such as de, zho_Hans or pt-BR. "" means an unknown language.

    Returns:
        zh (Chinese), ja-mecab (Japanese) or ko-mecab (Korean), char (other scripts without spaces
        between words, such as those of Thai, Lao, Khmer, Burmese and Tibetan), or 13a (all others).

    Raises:
        InputError: Babel, or without Babel ISO 639-1, does not know the language. Without Babel, a
            code with three letters is accepted if it includes a script.

    Example:
        >>> [bleu_tokenizer(code) for code in ("", "de", "zho_Hans", "th")]
        ['13a', '13a', 'zh', 'char']
    """
    if not language:
        return "13a"
    if found := _CODE.fullmatch(language):
        script = _usual_script(found[1].lower(), found[2])
        if script is not None:
            return _TOKENIZERS.get((found[2] or script).title(), "13a")
    message = 'must be the code of a language, such as de, pt_BR or zho_Hans, or ""'
    hint = "with three letters only if Babel is installed or the script is given"
    raise InputError(f"{message}, {hint}, got {language!r}", option="data.tgt_lang")


def _usual_script(code: str, given: str | None) -> str | None:
    """Return the usual script of a language, "" if its words have spaces, and None if unknown.

    Args:
        code: Code of ISO 639 in lower case.
        given: Script of the text, which without Babel is accepted for a code of three letters.
    """
    try:
        from babel import Locale
        from babel.core import get_global
    except ImportError:
        is_known = code in _SPACED or (len(code) == 3 and given)
        return _UNSPACED.get(code, "" if is_known else None)
    code = get_global("language_aliases").get(code, code).split("_")[0]  # zho and cmn become zh
    if likely := None if code == "und" else get_global("likely_subtags").get(code):
        return str(likely).split("_")[1]
    return "" if code in Locale("en").languages and code != "und" else None
