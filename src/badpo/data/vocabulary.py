"""Recognize words for sides, answers, people, votes and grades in the column names and labels of several languages."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Literal, NamedTuple

_HUMP = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[\u3040-\u9fff\uac00-\ud7a3])(?=[A-Za-z0-9])|"
    r"(?<=[A-Za-z0-9])(?=[\u3040-\u9fff\uac00-\ud7a3])"
)


_VOWEL_MARKS = re.compile("[\u064b-\u0652]")


# pattern for the legend of a scale in a column name such as "Preference (1 = A is better, 7 = B is better)"
LEGEND = re.compile(r"\s*[(\[](?=[^)\]]*[=\d])[^)\]]{3,}[)\]]")


# prefixes that Mechanical Turk and Toloka add to column names
_OF_CROWD = re.compile(r"^(?:(?:Input|Answer)\.|(?:INPUT|OUTPUT|ASSIGNMENT):)")


_PARTS = re.compile(r"[^\W\d_]+|\d+")


LONGEST_LEGEND = 1000

# columns that TRL passes to the chat template
TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs")


# words for the first side of a comparison, each with the word for the second side
SIDES = {
    **{"a": "b", "1": "2", "left": "right", "first": "second", "links": "rechts", "linke": "rechte"},
    **{"erste": "zweite", "gauche": "droite", "première": "seconde", "premier": "second"},
    **{"izquierda": "derecha", "primera": "segunda", "primero": "segundo", "esquerda": "direita"},
    **{"primeira": "segunda", "sinistra": "destra", "prima": "seconda", "左": "右", "左边": "右边"},
    **{"первый": "второй", "первая": "вторая", "слева": "справа", "левый": "правый", "левая": "правая"},
    **{"الأولى": "الثانية", "الأول": "الثاني", "첫번째": "두번째", "왼쪽": "오른쪽", "甲": "乙"},
}


SECONDS = {*SIDES.values(), "deuxième", "zweiter"}


ANSWER = (
    "(?:(?:model|assistant)_)?"
    "(?:response|resp|completion|answer|ans|output|generation|text|option|candidate|reply|argument|summary|assistant|item|"
    "antwoord|antwort|r[eé]ponse|respuesta|resposta|risposta|回答)"
)


PROMPT = (
    "(?:(?:user_)?prompt(?:_text)?|(?:user_)?(?:instruction|question|query)|frage|pregunta|pergunta|domanda|"
    "anfrage|aufgabe|问题|問題|質問|السؤال|вопрос|질문)"
)


PERSON = (
    "annotator|worker|rater|judge|evaluator|labell?er|reviewer|assessor|grader|participant|voter|coder|"
    "标注员|标注者|評価者|评估者|المقيم|gutachter(?:_in)?|juge|voter|assesseur|esperto|эксперт|оценщик|contributor|"
    "respondent|turker|bearbeiter|bewerter|annotateur|[eé]valuateur|evaluador|anotador"
)


# words that may stand for annotators in a column name, but also occur in the names of other columns
PEOPLE = re.compile(
    "who|user|uid|subject|person|editor|experte?|tester|student|member|volunteer|prüfer|nutzer|proband|testperson|usuario|"
    "correo|e?mail|testeur|utilisateur|oceniający|beoordelaar|bedömare|checker|评估员|评审|用户|担当者|평가자|مقيم|"
    "инициалы|initials|name|by|valutatore|avaliador|ip"
)


YES, NO = (
    ("true", "yes", "y", "ja", "oui", "sí", "si", "sim"),
    ("false", "no", "n", "nein", "non", "não"),
)


# words that mean that neither side was preferred
EVEN = re.compile(
    "tie|ties|tied|draw|drawn|even|equal|equally|same|similar|alike|both|bothbad|neither|either|none|undecided|"
    "indifferent|gleich|gleichwertig|unentschieden|remis|egal|beide|beides|keine|keiner|keins|empate|empates|"
    "empatado|igual|iguales|iguais|ambos|ambas|ninguno|ninguna|nenhum|nenhuma|égalité|égal|égaux|égales|pareil|"
    "pareils|identiques|nul|aucun|aucune|pareggio|uguali|entrambi|entrambe|nessuno|nessuna|gelijk|gelijkspel|lika|"
    "remisowy|oba|obie|równe|pari|parità|uguale|gleichstand|gelijkwaardig|oavgjort|équivalent|équivalentes|équivalents|"
    "equivalentes|parejo|żaden|eşit|berabere|ничья|одинаково|одинаковы|поровну|оба|обе|平局|平手|一样|一样好|一樣|"
    "相同|valent|都好|都不好|都差|引き分け|同じ|同等|同点|무승부|동점|비슷|비슷함|동일|egalite|æquo|aequo|متساويتان|"
    "متساويان|متساوية|متعادل|تعادل|同程度|同じくらい|どちらも|差なし|равны|差不多|一致|"
    "どちらとも(?:言|い)えない|どちらでもない|甲乙つけがたい|優劣なし|変わらない|无差异|無差異|不分上下|难分高下|打平|都一样|차이없음|비등|둘다|нічия|"
    "однаково|nerozhodně|stejné|seri|sama|imbang"
)


TURNED = {"a": "b", "b": "a", "tie": "tie"}


def folded(text: str) -> str:
    """Normalize a column name: lower case, no legend, and underscores between words and numbers.

    Examples
    --------
    >>> folded("Response A"), folded("responseA"), folded("worker-ID"), folded("answer1")
    ('response_a', 'response_a', 'worker_id', 'answer_1')
    """
    return _fold(text) if len(text) > LONGEST_LEGEND else _fold_name(text)


# Each piece of a long text consists of ASCII characters followed by at most 100 other characters.
# A text may be split before any ASCII character, because ASCII characters never combine with previous characters.
_PIECES = re.compile(r"[\x00-\x7f]*[^\x00-\x7f]{1,100}|[\x00-\x7f]+")


def normalize_text(text: str, form: Literal["NFC", "NFD", "NFKC"]) -> str:
    r"""Convert a text to a Unicode normalization form.

    A long text is normalized in pieces, because the time for a sequence of combining marks grows with the square of its
    length. No language uses more than 100 combining marks in a row. The function may leave longer sequences of
    combining marks in their original order.

    Examples
    --------
    >>> len(normalize_text("e\u0301", "NFC")), len(normalize_text("e" + "\u0300\u0316" * 100_000, "NFC"))
    (1, 200000)
    """
    pieces = [text] if len(text) <= 100 else _PIECES.findall(text)
    return "".join(unicodedata.normalize(form, piece) for piece in pieces)


def _fold(text: str) -> str:
    bare = without_legend(_OF_CROWD.sub("", text)) or text
    even = _VOWEL_MARKS.sub("", normalize_text(bare, "NFKC"))
    return "_".join(_PARTS.findall(_HUMP.sub("_", even).casefold()))


_fold_name = lru_cache(maxsize=8192)(_fold)  # each column name is compared with all other names


def without_legend(name: str) -> str:
    """Remove the legend of a column's values from the column's name.

    A name longer than `LONGEST_LEGEND` is returned unchanged, because searching it for a legend would take too long.
    """
    return LEGEND.sub("", name) if len(name) <= LONGEST_LEGEND else name


def has_word(name: str, words: re.Pattern[str]) -> bool:
    """Return whether any word in a column name matches ``words``."""
    return any(map(words.fullmatch, folded(name).split("_")))


_NUMBER_OF_PEOPLE = re.compile(
    rf"n|(?:n|no|nr|num|number|count|total|anzahl)_(?:of_|der_|de_)?(?:{PERSON}|vote|person|people|user)s?|"
    rf"(?:{PERSON}|vote)s?_(?:count|total)"
)


def is_number_of_people(name: str) -> bool:
    """Return whether a column name such as ``No. of raters`` stands for the number of annotators."""
    return _NUMBER_OF_PEOPLE.fullmatch(folded(name)) is not None


def like_annotators(found: Iterable[str]) -> list[str]:
    """Return columns whose names contain a word such as "rater" and that may therefore hold the annotators."""
    names = [name for name in found if re.search(f"{PERSON}|user", name.casefold())]
    return [name for name in names if not is_number_of_people(name)]


def is_called_like_people(name: str) -> bool:
    """Return whether any word in a column name may stand for the annotator."""
    return bool(like_annotators([name])) or has_word(name, PEOPLE)


# words that may stand next to a side in a label; "not" is excluded, because the label "not a" names no side
_AROUND = re.compile(
    f"{ANSWER}|model|system|vote|strongly|slightly|clearly|much|significantly|somewhat|definitely|far|viel|etwas|deutlich|"
    "mucho|beaucoup|i|prefer|prefers|preferred|the|choice|opt|ответ|الإجابة|答案|응답|one|on|side|wins|win|won|is|was|"
    "ist|es|est|é|better|besser|mejor|meilleur|meilleure|melhor|migliore|лучше|أفضل|la|le|el|il|die|der|das|lo|l|"
    "更好|较好|好|更优|胜|の方が良い|のほうが良い|の方がよい|が良い|がよい|veel|iets|beter|molto|poco|un|po|"
    "meglio|muito|um|pouco|algo|nettement|légèrement|peu|jest|lepsza|lepszy|lepsze|trochę|znacznie|bättre|mycket|lite|är|"
    "гораздо|намного|немного|чуть|가|이|더|훨씬|조금|약간|좋음|좋다|좋아요|낫다|나음|우수|답변|회답|항목"
)


_BESIDE = re.compile(
    "a|about|almost|an|and|vote|answer|answers|are|b|bad|better|bien|bonnes|bons|buenas|buenos|de|des|deux|die|fine|"
    "good|great|gut|in|is|it|its|les|los|malas|malos|match|mauvais|model|of|one|options|poor|quality|response|"
    "responses|s|schlecht|se|so|son|the|them|they|two|very|were|well|wrong|ex|ok|okay|dos|due|as|las"
)


_NO_SIDE = re.compile(
    "(?:no|sans|keine?n?|sin|sem|nessuna|geen|ingen|без|bez|차이)_(?:clear_)?(?:difference|preference|winner|préférence|"
    "différence|präferenz|unterschied|preferencia|diferencia|preferência|diferença|preferenza|differenza|voorkeur|"
    "verschil|preferens|skillnad|предпочтения|разницы|różnicy|rozdílu|없음)"
)


_OF_THREE: dict[tuple[float, ...], tuple[str, ...]] = {
    (-1.0, 0.0, 1.0): ("a", "tie", "b"),
    (0.0, 1.0, 2.0): ("tie", "a", "b"),
}


_SIGNS = {
    **dict.fromkeys(("=", "==", "[[C]]", "🤝"), ("tie", "")),
    **dict.fromkeys(("←", "👈", "⬅️", ">"), ("a", "left")),
    **dict.fromkeys(("→", "👉", "➡️", "<"), ("b", "right")),
}


_SCORE = re.compile(r"(1|0|½|1/2|0[.,]5) ?[-\u2013:] ?(1|0|½|1/2|0[.,]5)")


_POINTS = {"1": 1.0, "0": 0.0, "½": 0.5, "1/2": 0.5, "0.5": 0.5}


_COMPARED = re.compile(r"\W*(?:(a|1)|b|2)\s*(>+|<+|=+)\s*(?:a|b|1|2)\W*")


def side_of_label(label: str) -> tuple[str, str] | None:
    """Like `side_of`, return the side that a short label names, and the word for the side."""
    if compared := _COMPARED.fullmatch(label.casefold()):
        sign = compared[2][0]
        side = "tie" if sign == "=" else "a" if (sign == ">") == bool(compared[1]) else "b"
        return side, side.removeprefix("tie")
    if label.strip() in _SIGNS:
        return _SIGNS[label.strip()]
    if score := _SCORE.fullmatch(label.strip()):
        # the label gives the points of both sides, which must add up to 1 as in chess
        a, b = (_POINTS[points.replace(",", ".")] for points in score.groups())
        return (("tie", "") if a == b else ("ab"[a < b],) * 2) if a + b == 1 else None
    if len(several := re.split(r"\s*[,;|&]\s*", label.strip())) > 1:
        # if a question allows several choices, the choice of both answers is a tie
        chosen = [*map(side_of_label, several)]
        if len(chosen) == 2 and {one[0] for one in chosen if one} == {"a", "b"}:
            return "tie", ""
    # a label may begin with a number and continue with its meaning, as in "7 - B is much better"
    for form in ((whole := folded(label)), whole.lstrip("0123456789").lstrip("_")):
        words = [word.removesuffix("vote") or word for word in form.split("_")]
        left = [word for word in words if not EVEN.fullmatch(word)]
        if _NO_SIDE.fullmatch(form) or (len(left) < len(words) and all(map(_BESIDE.fullmatch, left))):
            return "tie", ""
        named = [word for word in words if not _AROUND.fullmatch(word)]
        if len(named) == 1 and (named[0] in SIDES or named[0] in SECONDS):
            return "a" if named[0] in SIDES else "b", named[0]
    return None


# In rows with exchanged sides, badpo appends the name of the marking column and the ending below to the label.
EXCHANGED = " exchanged)"


_DECISION = "verdict|winner|answer|decision|choice|preference|preferred|better|best|judge?ment|selected|vote|result"


# patterns for the verdict in a judge's text; the most reliable pattern comes first
_VERDICTS = [
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"(\[\[[^\[\]]{1,20}\]\])",
        rf"[\"'](?:\w{{1,20}}_)?(?:{_DECISION})(?:_\w{{1,20}})?[\"']\s*:\s*[\"']?([^\"',}}]{{1,80}})",
        rf"<(?:{_DECISION})>\s*([^<>]{{1,80}}?)\s*</",
        rf"\b(?:{_DECISION})\b[^.:=\n]{{0,30}}?(?:[:=]|\bis\b|[*#]*$)[\s*]*([^\n]{{1,80}}?)[\s*.!]*$",
        r"\b(?:pick|choose|prefer|select|favou?r|go with) ([^.\n]{1,60})",
        r"\A\W*([^.,;:\n]{1,60}?)(?:[.,;:\n]| because\b| since\b| as\b)",
    )
]


_LONGEST_VERDICT, _LONGEST_LABEL, _USUAL_LABEL = 100_000, 60, 12


def side_of(label: str) -> tuple[str, str] | None:
    """Return the side that a label or a judge's text names, and the word for the side; return None if there is no side.

    Examples
    --------
    >>> side_of("Response 2 is better"), side_of("[[A]]"), side_of("A>>B"), side_of("both bad"), side_of("not a")
    (('b', '2'), ('a', 'a'), ('a', 'a'), ('tie', ''), None)
    >>> side_of("A is long, and B is short. My final verdict: B"), side_of('{"reason": "A is long", "winner": "tie"}')
    (('b', 'b'), ('tie', ''))
    """
    if len(label) <= LONGEST_LEGEND and (side := side_of_label(label)):
        return side
    if _USUAL_LABEL < len(label) < _LONGEST_VERDICT:
        for pattern in _VERDICTS:
            if found := pattern.findall(label):
                return side_of_label(found[-1])
    return None


_NUMBER_FIRST = re.compile(
    r"(?<![^\W\d_])([+-]?\d+)\s*(?:[=:()]|\s-\s|\s(?=[^\W\d]))\s*(.+?)\s*"
    r"(?=[,;|/)\]\u2013\u2026]|$|\.\.| (?:to|bis|and) |\s(?:\([+-]?\d+\)|[+-]?\d+\s*[=:(]))"
)


_NUMBER_LAST = re.compile(r"([^\W\d_][\w ]*?)\s*[=(]\s*([+-]?\d+)")


def legends_in(name: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Find numbers and their meanings in a column name, as two lists of (number, meaning) pairs.

    In the first list, the numbers precede their meanings, as in ``1 = A is better``. In the second list, the numbers
    follow their meanings, as in ``A is better = 1``. If the name is longer than `LONGEST_LEGEND`, both lists are empty.
    """
    if len(name) > LONGEST_LEGEND:
        return [], []
    return _NUMBER_FIRST.findall(name), [found[::-1] for found in _NUMBER_LAST.findall(name)]


# words that mean that high numbers prefer the named side, as in the column names "p_a_over_b" and "A is better"
# _BESIDE_PREFERS also matches words that may stand next to a word such as "better", as in "How much better is A?"
_PREFERS = re.compile(
    "p|prob|probability|likelihood|chance|better|win|wins|won|winner|preferred|prefers|preference|chosen|over|minus|beats"
)


_BESIDE_PREFERS = re.compile(
    rf"{_PREFERS.pattern}|{ANSWER}|is|was|are|the|for|of|that|than|to|how|much|rate|vote|score|model|judge|degree|percent"
)


_BETWEEN_SIDES = re.compile("over|minus|beats|(?:is_|was_)?(?:better|preferred)_(?:than|to|over)")


_VOTED = (
    "prefer|preferid|präfer|bevorzug|better|best|besser|meilleur|préfér|mejor|prefier|melhor|miglior|winner|winning|verdict|vote|"
    "choice|chosen|choix|pick|select|judg|urteil|label|elegid|哪个|哪個|更好|偏好|أفضل|评价|評価|好み|лучше|предпоч|result|outcome|which"
)


def names_vote(name: str) -> bool:
    """Return whether the name of a column says that it holds votes."""
    return re.search(_VOTED, folded(name)) is not None


def direction_of(name: str) -> dict[str, str]:
    """Return what the numbers in a column mean, based on its name.

    The result maps numbers to sides, and ``high`` to the side that high numbers prefer. If the name does not explain
    the numbers, the result is empty.

    Examples
    --------
    >>> direction_of("Preference (1 = A is much better, 4 = same, 7 = B is much better)")
    {'1': 'a', '4': 'tie', '7': 'b', 'high': 'b'}
    >>> direction_of("a_is_better"), direction_of("score_b_minus_a"), direction_of("Helpfulness (1-5)")
    ({'high': 'a'}, {'high': 'b'}, {})
    """
    if len(name) > LONGEST_LEGEND:
        return {}
    sides: dict[str, str] = {}
    for legend in legends_in(name):
        words_of = {number.lstrip("+"): words for number, words in legend}
        told = {number: side[0] for number, words in words_of.items() if (side := side_of(words))}
        if len(told) < len(words_of):
            mirrored = mirrored_sides(words_of.values(), fewest=2)
            told |= {number: mirrored[words] for number, words in words_of.items() if words in mirrored}
        if {"a", "b"} <= {*told.values()} and len(told) > len(sides):
            sides = told
    if sides:
        order = [sides[number] for number in sorted(sides, key=float)]
        ends = order[0], order[-1]
        # numbers form a scale if, in ascending order, they mean "a", "tie", "b" or "b", "tie", "a"
        is_scale = {*ends} == {"a", "b"} and order == sorted(order, key=(ends[0], "tie", ends[1]).index)
        return sides | ({"high": ends[1]} if is_scale else {})
    if folded(name).rpartition("_")[2] in ("idx", "index"):
        # an index numbers the sides from 0 only if the column name also contains a word for votes
        return {"0": "a", "1": "b"} if re.search(_VOTED, folded(name)) else {}
    words = folded(name).split("_")
    at = [i for i, word in enumerate(words) if word in SIDES or word in SECONDS]
    others = [word for i, word in enumerate(words) if i not in at]
    is_said = any(map(_PREFERS.fullmatch, others)) and all(map(_BESIDE_PREFERS.fullmatch, others))
    between = (
        "_".join(word for word in words[at[0] + 1 : at[-1]] if not re.fullmatch(ANSWER, word))
        if at
        else ""
    )
    # "p1" is a person, but "p_a" and "p_b" are the probabilities of the sides
    is_of_one = len(at) == 1 and words != ["p", words[at[0]]] or words in (["p", "a"], ["p", "b"])
    if not is_said or not (is_of_one or (len(at) == 2 and _BETWEEN_SIDES.fullmatch(between))):
        return {}
    return {"high": "a" if words[at[0]] in SIDES else "b"}


_LOW_WINS = re.compile(
    "(?:.*_)?(?:rank|place|schulnoten?|platz|rang|error|errors|loss|lower_is_better|low_is_better|lower_better)(?:_.*)?"
)


_HIGH_WINS = re.compile(
    "(?:.*_)?(?:rating|score|stars?|points|likert|quality|better|best|preferred|higher_is_better|qualität|punkte|puntos|calidad|"
    "qualité|nota|voto|punteggio|cijfer|betyg|pontuação|puntuación|ocena|оценка|评分|分数|得点|점수|votes|wins|won|win|chosen|selected|ups|upvotes|likes|karma)(?:_.*)?"
)


def which_wins(name: str) -> str:
    """Return "high" or "low" if the column name says that the higher or the lower number wins; otherwise return "".

    Examples
    --------
    >>> which_wins("Mark (1 = very good, 6 = bad)"), which_wins("quality 1"), which_wins("value 1")
    ('low', 'high', '')
    """
    if len(name) > LONGEST_LEGEND:
        return ""
    legend = found[0].strip(" ()[]") if (found := LEGEND.search(name)) else name
    for pairs in legends_in(legend):
        is_good = {float(number): grade_of(words) > 0 for number, words in pairs}
        good = [number for number in is_good if is_good[number]]
        others = [number for number in is_good if not is_good[number]]
        if good and (others or min(good) == 1):
            return "low" if min(good) < min(others, default=2) else "high"
    form = folded(legend) if found is None else f"{folded(name)}_{folded(legend)}"
    return "low" if _LOW_WINS.fullmatch(form) else "high" if _HIGH_WINS.fullmatch(form) else ""


def number_of(label: str) -> float:
    """Return the number in a label such as ``3,5``, ``80 %``, ``4 stars`` or ``★★``, or NaN for any other label."""
    text = label.strip().replace("\u2212", "-").replace(",", ".")
    if found := re.fullmatch(
        r"([+-]?\d{1,9}(?:\.\d+)?)(?: ?%| ?/ ?\d+| ?(?:stars?|points?|sterne?|punkte?))?", text, re.I
    ):
        return float(found[1])
    return float(text.count("\u2605")) if text and not text.strip("\u2605\u2606") else math.nan


_GRADES = {
    word: grade
    for grade, words in {
        3.0: (
            "excellent excellente excelente perfect outstanding great best top hervorragend "
            "beste ótimo ottimo"
        ),
        1.0: (
            "good like liked helpful up agree positive win won chosen 👍 winner preferred "
            "accepted approved pass better satisfied gut bon stimme zu correct useful bueno "
            "buena bien buono selected upvote"
        ),
        0.0: "neutral fair ok okay average mixed acceptable mittel",
        -1.0: (
            "bad poor dislike disliked unhelpful down disagree negative loss lost lose loser "
            "rejected fail worse dissatisfied schlecht 👎 incorrect useless malo mala mauvais "
            "downvote unacceptable"
        ),
        -3.0: "terrible awful horrible",
    }.items()
    for word in words.split()
}


_DEGREES = {
    word: degree
    for degree, words in {
        2.0: "very strongly extremely completely totally sehr très muy highly",
        0.5: "somewhat slightly rather fairly mostly eher partly",
        -1.0: "not nicht no don pas",
        1.0: "thumb thumbs a t d the is i it response answer",
    }.items()
    for word in words.split()
}


def grade_of(label: str) -> float:
    """Convert a verbal grade or degree of agreement to a number; return NaN for any other label.

    Examples
    --------
    >>> [grade_of(label) for label in ("thumbs up", "Strongly disagree", "fair", "not helpful", "A")]
    [1.0, -2.0, 0.0, -1.0, nan]
    """
    words = folded(label).split("_") if label.strip() not in _GRADES else [label.strip()]
    grades = [_GRADES[word] for word in words if word in _GRADES]
    if grades and words[0] == "neither":
        return 0.0
    degrees = [_DEGREES.get(word, math.nan) for word in words if word not in _GRADES]
    return grades[0] * math.prod(degrees) + 0.0 if len(grades) == 1 else math.nan


def graded(labels: Sequence[str]) -> dict[str, float]:
    """Convert labels that are verbal grades, such as "good", to numbers.

    The result is empty if any label is not a grade, or if all labels mean the same number.
    """
    grades = {label: grade_of(label) for label in labels}
    return grades if len({*grades.values()}) > 1 and all(map(math.isfinite, grades.values())) else {}


# "A is worse" prefers the other side
_WORSE = re.compile(
    "worse|worst|not|loses|lost|rejected|schlechter|nicht|pire|peor|pior|peggio|slechter|gorsza|хуже"
)


def mirrored_sides(labels: Iterable[str], fewest: int = 3) -> dict[str, str]:
    """Return the side of each label if the labels for the two sides differ only in the word for the side.

    The other words of the labels may be in any language. A label without a word for a side is a tie. The result is
    empty for labels that do not mirror each other, such as codes of people or names of groups, and for fewer than
    ``fewest`` labels.

    Examples
    --------
    >>> mirrored_sides(["A är bättre", "B är bättre", "lika bra"]), mirrored_sides(["A är bättre", "B är större"])
    ({'A är bättre': 'a', 'B är bättre': 'b', 'lika bra': 'tie'}, {})
    """
    sides: dict[str, str] = {}
    around: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    for label in labels:
        if label.endswith(EXCHANGED):
            return {}
        words = folded(label.lstrip("+-0123456789 ")).split("_")
        named = [word for word in words if word in SIDES or word in SECONDS]
        others = tuple(word for word in words if word not in named)
        is_name = any(re.fullmatch(PERSON, word) for word in others) or re.fullmatch(
            r"[^\W\d]+[-_ ]?\d+", label
        )
        # a label such as "c" means a third answer, not a tie
        if len(named) > 1 or is_name or (not named and min(map(len, words)) < 2 and label.isascii()):
            return {}
        side = ("a" if named[0] in SIDES else "b") if named else "tie"
        around[side].add(others)
        sides[label] = TURNED[side] if any(map(_WORSE.fullmatch, others)) else side
    is_mirrored = around["a"] == around["b"] != set() and len(around["tie"]) < 3
    return sides if is_mirrored and len(sides) >= fewest else {}


class RatingScale(NamedTuple):
    """A rating scale: its ends, its middle (a tie), and the side that high ratings prefer ("" if unknown)."""

    low: float
    middle: float
    end: float
    high: str


def scale_of(labels: Sequence[str], told: Mapping[str, str], is_rating: bool) -> RatingScale | None:
    """Return the scale of ratings; return None for labels that are not ratings.

    ``told`` says which side a ``high`` or ``low`` rating prefers, and which number is a tie. If ``told`` names no tie,
    the tie is 0 on a scale with negative numbers and the middle of any other scale. Numbers that ``told`` does not
    explain also count as ratings if there are at least four of them, if any is below -1, or if they are three evenly
    spaced numbers with a step other than 1.

    Examples
    --------
    >>> scale_of(["1", "7", "3"], {"low": "a"}, is_rating=False)
    RatingScale(low=1.0, middle=4.0, end=7.0, high='b')
    >>> scale_of(["1", "5", "3"], {}, is_rating=False).middle
    3.0
    """
    ends = [key for key, side in told.items() if side != "tie"]
    numbers = {number: one for one in [*ends, *labels] if math.isfinite(number := number_of(one))}
    untold = sorted(number for number, label in numbers.items() if label not in told)
    is_rating = is_rating or len(untold) > 3 or min(untold, default=0) < -1
    # 1, 3 and 5 or 0, 0.5 and 1 are a scale with a middle, while 1, 2 and 3 may mean a, b and tie
    is_rating = is_rating or (len(untold) == 3 and untold[1] - untold[0] == untold[2] - untold[1] != 1)
    if not numbers or not (is_rating or {"high", "low"} & {*told}):
        return None
    # the smallest and largest numbers in a legend are the ends of the scale, even if no cell contains them
    legend = [number for number in map(number_of, ends) if math.isfinite(number)]
    low, end = (min(legend), max(legend)) if len(legend) > 1 else (min(numbers), max(numbers))
    ties = [number_of(label) for label, side in told.items() if side == "tie"]
    step = 10 if end > 10 else 1  # the ends of a scale are assumed to be multiples of the step
    guess = 0.0 if low < 0 else (math.floor(low / step) + math.ceil(end / step)) * step / 2
    middle = next(filter(math.isfinite, ties), guess)
    return RatingScale(low, middle, end, told.get("high") or TURNED.get(told.get("low", ""), ""))


def side_told(
    label: str,
    told: Mapping[str, str],
    columns: Sequence[str],
    scale: RatingScale | None,
    are_places: bool,
) -> tuple[str, str]:
    """Return the side that a label names and how it names this side, or two empty strings if it names no side.

    The second value is ``name`` if the label names the response, and ``order`` if it names only the position of the
    response, such as left. ``columns`` are the names of the two columns of responses. ``are_places`` is True if 1 and 2
    are the only numbers among the labels.
    """
    own, number, form = label.strip().casefold(), number_of(label), folded(label)
    if label in told or own in TURNED:
        return told.get(label, own), "name"
    is_called = [form == column or form in column.split("_") for column in columns]
    # if the answer columns are numbered from 0, a numeric label is the name of an answer
    is_from_0 = "0" in columns[0].split("_")
    if (math.isnan(number) or is_from_0) and sum(is_called) == 1:
        return "ab"[is_called.index(True)], "name"
    if scale and not math.isnan(number):
        above = scale.high if number > scale.middle else TURNED.get(scale.high, "")
        return "tie" if number == scale.middle else above, "name"
    side, word = (side_of(label) if are_places or math.isnan(number) else None) or ("", "")
    is_named = word in ("", "a", "b") or any(word in column.split("_") for column in columns)
    return side, ("name" if is_named else "order") * bool(side)


def proposed(counts: Mapping[str, int], known: set[str], scale: RatingScale | None) -> dict[str, str]:
    """Propose a meaning for each ambiguous label; the user must confirm the meanings.

    The function proposes meanings for two or three labels, or for a rating scale. ``counts`` holds the number of rows
    with each label, most frequent label first. The rarest of three words is the proposed tie. The rarest of three
    numbers is the proposed tie only if each of the other numbers is at least twice as frequent. If ``known`` includes
    side a or side b, the function proposes meanings only for a scale and for labels in rows with exchanged sides.
    """
    labels = [*counts]
    if scale and not scale.high:
        # high ratings on a scale usually prefer the second answer, but high shares usually prefer the first answer
        return {"high": "a" if scale.low >= 0 and scale.end <= 1 else "b"} | (
            {f"{scale.middle:g}": "tie"} if scale.low >= 0 else {}
        )
    if any(label.endswith(EXCHANGED) for label in labels):
        bare = {
            label: label.rpartition(" (")[0] if label.endswith(EXCHANGED) else label for label in labels
        }
        if {*bare.values()} == {"0", "1"}:
            sides_there = {label: "ab"[int(place)] for label, place in bare.items()}
        else:
            sides_there = {label: side[0] for label, place in bare.items() if (side := side_of(place))}
        return {
            label: TURNED[side] if label.endswith(EXCHANGED) else side
            for label, side in sides_there.items()
        }
    if {"a", "b"} & known or max(map(len, labels), default=0) > _LONGEST_LABEL:
        return {}
    if mirrored := mirrored_sides(labels):
        return mirrored
    if len(labels) not in (2, 3):
        return {}
    numbers = sorted(map(number_of, labels))
    ordered = sorted(labels[:2], key=lambda label: (label.casefold() not in YES, label)) + [*labels[2:]]
    sides: tuple[str, ...] = ("a", "b", "tie")
    if all(map(math.isfinite, numbers)):
        by_number = sorted(labels, key=number_of)
        *others, rarest = labels
        if len(labels) == 3 and 2 * counts[rarest] <= min(counts[label] for label in others):
            ordered = [*(label for label in by_number if label != rarest), rarest]
        else:
            ordered, sides = by_number, _OF_THREE.get(tuple(numbers), sides)
    meanings = dict(zip(ordered, sides, strict=False))
    # surveys use 9 for a missing answer
    return {label: "skip" if re.fullmatch("9+", label) else side for label, side in meanings.items()}


KNOWN = (
    *("prompt", "annotator", "annotator_class", "comparison_id", "prompt_id", "judgment_id"),
    *("weight", "shown_first", "response_a", "response_b", "winner", "chosen", "rejected"),
)


MODELS = ("model_a", "model_b")


PAIR = ("prompt", "response_a", "response_b")


TEXTS = (*PAIR[1:], "chosen", "rejected", "response")


# Names of vote columns in tables that have no "winner" column.
ANSWERS = (
    "rating",
    "rating_a",
    "rating_b",
    "rank_a",
    "rank_b",
    "votes_a",
    "votes_b",
    "votes_tie",
)


ANSWERS_HERE = "\n\nAssistant:"  # marker before an answer in a conversation stored as one text


# Names of columns in tables with one answer per row.
OF_ONE_ANSWER = ("response", "rank")


_SIDE_PARTS = (("a", "b"), ("chosen", "rejected"))


_WITH_SIDE = r"(?:.*_)?{}(?:_.*)?"


def side_pairs(names: Iterable[str]) -> dict[str, str]:
    """Pair the columns that hold a value for each side: map the first side's column to the second side's column.

    Each name contains ``a`` or ``b``, or ``chosen`` or ``rejected``, as one of its parts between underscores. Columns
    of identifiers are left out.

    Examples
    --------
    >>> side_pairs(["score_a", "score_b", "chosen_words", "rejected_words", "id_a", "id_b", "a_b"])
    {'score_a': 'score_b', 'chosen_words': 'rejected_words'}
    """
    forms = {name: name for name in names if {"id", "ids"}.isdisjoint(name.split("_"))}
    return dict(_pairs(forms, _SIDE_PARTS, _WITH_SIDE))


# pairs of words for the two sides in column names; words such as "baseline" are not in SIDES, which labels use too
_SIDES_OF_COLUMNS = (
    *SIDES.items(),
    *(("0", "1"), ("x", "y"), ("white", "black"), ("baseline", "candidate"), ("control", "treatment")),
)


_WON = (
    *(("chosen", "rejected"), ("better", "worse"), ("winning", "losing"), ("winner", "loser")),
    *(("preferred", "rejected"), ("preferred", "non_preferred"), ("preferred", "dispreferred")),
    *(("bevorzugt", "abgelehnt"), ("gewählt", "abgelehnt"), ("préférée", "rejetée")),
    *(("elegida", "rechazada"), ("preferida", "rechazada"), ("escolhida", "rejeitada")),
)


LOST = frozenset({*(lost for _, lost in _WON), "worst"})


OF_TEXTS = f"(?:.*_)?(?:{ANSWER}|prompt|chosen|rejected|input|question|instruction)(?:_.*)?"


_OF_PERSON = "class|group|team|type|role|cohort|category"


# Patterns for the names that a table may use instead of badpo's column names.
_NAMED = {
    "prompt": PROMPT,
    "response": ANSWER,
    "rank": "ranking|place|position",
    "winner": (
        "preference|pr[eé]f[eé]rence|preferencia|präferenz|urteil|choix|偏好|preferred|preferred_(?:side|response|answer|text|system|model)|choice|vote|verdict|better|best|selected|"
        f"(?:better|best|preferred|chosen|winning)_(?:{ANSWER})(?:_(?:id|idx|index|number|nr|no))?|which(?:_{ANSWER})?_(?:is_better|do_you_prefer)|(?:overall|human)_preference|winning_(?:{ANSWER})|1_st_(?:choice|place)|first_choice"
    ),
    "annotator": (
        rf"(?:{PERSON})(?:_(?:id|name|model|code|key|nr|no|number|hash|e_?mail))?|user_id|prolific_(?:id|pid)|e_?mail_ad\w*|"
        r"mturk_(?:worker_)?id|network_id|(?:annotat|label|labell|complet|judg|rat)ed_by(?:_id)?"
    ),
    "annotator_class": f"(?:{PERSON}|user)_(?:{_OF_PERSON})",
    "rating": "likert|likert_rating|slider|score|preference_(?:rating|score|strength)",
    "votes_tie": "(?:n_|num_)?ties|(?:votes|n|count)_(?:for_)?(?:tie|equal|both|neither)|winner_tie",
}


_FILLERS = re.compile(
    "text|body|content|string|value|column|field|full|the|your|my|our|is|was|it|of|for|this|raw|user|final"
)


# patterns for further column names, for use only if no column name matches the pattern in `_NAMED`
_ELSE = {
    "prompt": (
        "(?:user_)?input|task|conversations?|dialogue?|post|article|document|messages|history|"
        "instructions|consigne"
    )
}


# words for a number and words for what the counted people did, as in the column name n_prefer_a
_NUMBER = "(?:n|num|no|number_of|number|count|counts|anzahl)"
_CHOSEN_BY = (
    "prefer|prefers|preferred|preferring|chose|chosen|choosing|picked|picks|selected|voted|votes|voters|raters|"
    "people"
)


# Patterns for pairs of column names that differ only in the word for the side; {} stands for this word.
_NAMED_PAIRS = {
    ("response_a", "response_b"): (
        _SIDES_OF_COLUMNS,
        rf"(?:{ANSWER}|conversation|conv|dialogue?|messages|chat|transcript|state)s?_{{}}(?:_(?:text|content|messages|body|value))?|"
        rf"{{}}(?:_(?:{ANSWER}))?(?:_(?:text|content|messages|body|value))?",
    ),
    ("chosen", "rejected"): (
        _WON,
        rf"{{}}(?:_(?:{ANSWER}))?(?:_(?:text|content|messages|body|value))?|(?:{ANSWER})_{{}}",
    ),
    ("rating_a", "rating_b"): (
        [*SIDES.items()],
        r"(?:rating|score|stars|points|likert)s?_{}|{}_(?:rating|score|stars|points)",
    ),
    ("rank_a", "rank_b"): ([*SIDES.items()], r"(?:rank|place)_(?:of_)?{}|{}_(?:rank|place)"),
    ("model_a", "model_b"): (_SIDES_OF_COLUMNS, r"(?:model|system)(?:_name)?_{}|{}_(?:model|system)"),
    ("votes_a", "votes_b"): (
        [*SIDES.items()],
        r"(?:n_|num_)?(?:(?:up_?)?votes|wins|count|n|likes|votos|voti|voix|stimmen|stemmen|röster)_"
        r"(?:(?:for|pour|para|per|für|voor|för)_)?{}|{}_(?:(?:up_?)?votes|wins|count|likes|on|(?:is_)?better)|"
        r"winner_(?:model_)?{}|"
        + rf"{_NUMBER}_(?:{_CHOSEN_BY})_(?:for_)?{{}}|{{}}_(?:{_CHOSEN_BY})_{_NUMBER}",
    ),
}


_PATH = re.compile(r"^[^./]*\w[./](?=\w)")


_CLOSE = 0.75


_LONGEST_NAME = 200  # comparing words of more than _LONGEST_NAME characters takes seconds


def columns_named(found: Sequence[str], wanted: Iterable[str]) -> dict[str, str]:
    """Return the column for each of badpo's names in ``wanted``; leave out a name that could mean two columns.

    A column with exactly badpo's name takes precedence over a column with a different spelling of it. A column with
    either spelling takes precedence over a column whose name matches a pattern in `_NAMED`.
    """
    wanted = list(wanted)
    theirs = {ours: ours for ours in wanted if ours in found}
    are_several = False
    # leave out column names without letters and digits, such as "#"
    free = {name: form for name in found if name not in theirs and (form := folded(name))}

    def take(ours: str, names: Sequence[str]) -> None:
        if len(names) == 1:
            theirs[ours] = names[0]
            del free[names[0]]

    for ours in wanted:
        if ours not in theirs:
            take(ours, [name for name, form in free.items() if form == ours])
    for pair, (words, pattern) in _NAMED_PAIRS.items():
        if {*pair} <= {*wanted} and not {*pair} & {*theirs}:
            pairs = _pairs(free, words, pattern)
            for ours, name in zip(pair, pairs[0] if len(pairs) == 1 else (), strict=False):
                take(ours, [name])
    for ours in wanted:
        for pattern in (_NAMED.get(ours, ""), _ELSE.get(ours, "")):
            if ours not in theirs:
                names = [name for name, form in free.items() if re.fullmatch(pattern, form)]
                take(ours, [name for name in names if free[name].endswith("_id")] or names)
    if "winner" in wanted and "winner" not in theirs:
        names = [name for name in free if direction_of(name)]
        are_several = len(names) > 1
        take("winner", [name for name in names if "overall" in free[name]] or names)
    for ours in wanted:
        if ours not in theirs:
            bare = {name: _without_fillers(form) for name, form in free.items()}
            take(
                ours, [name for name, form in bare.items() if re.fullmatch(_NAMED.get(ours, ours), form)]
            )
    if {"votes_a", "votes_b"} <= {*theirs} and "votes_tie" in wanted and "votes_tie" not in theirs:
        take("votes_tie", [name for name in free if (side_of(name) or ("",))[0] == "tie"])
    # if a column name is a path, such as data.prompt, recognize it by the part after the first dot or slash
    ends = [
        (end, name) for name in free if len(end := _PATH.sub("", name, count=1)) not in (1, 2, len(name))
    ]
    inner = {end: name for end, name in ends if [*zip(*ends, strict=True)][0].count(end) == 1}
    if inner:
        # if several column names say which number means which side, no column is recognized as the winner
        left = [ours for ours in wanted if ours not in (*theirs, *["winner"] * are_several)]
        theirs |= {ours: inner[end] for ours, end in columns_named([*inner], left).items()}
    return theirs


def _without_fillers(form: str) -> str:
    """Remove filler words from a folded name; ``the_answer_text`` becomes ``answer``."""
    return "_".join(word for word in form.split("_") if not _FILLERS.fullmatch(word))


def _pairs(
    free: Mapping[str, str], words: Iterable[tuple[str, str]], pattern: str
) -> list[tuple[str, str]]:
    """Return pairs of columns whose names differ only in the word for the side."""
    by_form = {form: name for name, form in free.items()}
    parts = {form: form.split("_") for form in by_form}
    pairs: list[tuple[str, str]] = []
    for first, second in words:
        for form, name in by_form.items():
            if first not in parts[form]:
                continue
            other = "_".join(second if part == first else part for part in parts[form])
            # skip numeric column names, because a program may number unnamed columns
            is_side = re.fullmatch(pattern.replace("{}", first), form) and not form.isdigit()
            if is_side and other != form and other in by_form:
                pairs.append((name, by_form[other]))
    return pairs


def columns_of_sides(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of columns whose names differ only in the word for a side, whatever the columns contain.

    Examples
    --------
    >>> columns_of_sides(["quality 1", "quality 2", "Mark A (1 = best)", "Mark B (1 = best)", "note"])
    [('Mark A (1 = best)', 'Mark B (1 = best)'), ('quality 1', 'quality 2')]
    """
    return [*_pair_sides(tuple(names))]


@lru_cache(maxsize=16)  # called once for each column of a table
def _pair_sides(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    # leave out unnamed columns and columns for numbered people or numbered questions
    # leave out pairs that have a third column of the same kind, such as answers 1 to 3
    forms = {name: form for name in names if (form := folded(name)) and not _NUMBERED.match(form)}
    ends = {form.rpartition("_")[::2] for form in forms.values()}
    pairs = _pairs(forms, _SIDES_OF_COLUMNS, _WITH_SIDE)
    stems = {pair: folded(pair[0]).rpartition("_")[0] for pair in pairs}
    return tuple(pair for pair in pairs if ends.isdisjoint({(stems[pair], "3"), (stems[pair], "c")}))


def columns_of_outcomes(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of columns whose names differ only in the word for the outcome, such as winner and loser.

    Examples
    --------
    >>> columns_of_outcomes(["winner_tokens", "loser_tokens", "len_a", "len_b"])
    [('winner_tokens', 'loser_tokens')]
    """
    return _pairs({name: folded(name) for name in names}, _WON, _WITH_SIDE)


# pairs of words for the two orders in which a judge saw the answers, for example "original" and "swapped"
_ORDERS = [
    (first, second)
    for first, seconds in {
        **{"ab": "ba", "12": "21", "01": "10", "order_1": "order_2", "ord_1": "ord_2", "hin": "zurück"},
        **{"first_order": "second_order", "direct": "swapped", "orig": "swap"},
        **{"normal": "swapped flipped", "original": "swapped flipped reversed swap"},
        "forward": "backward reverse reversed",
    }.items()
    for second in seconds.split()
]


def columns_of_orders(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of columns whose names differ only in the word for the order of the answers.

    Examples
    --------
    >>> columns_of_orders(["verdict_AB", "verdict_BA", "judge"])
    [('verdict_AB', 'verdict_BA')]
    """
    by_form = {folded(name): name for name in names}
    pairs: dict[tuple[str, str], None] = {}
    for first, second in _ORDERS:
        word = rf"(?<![^_]){second}(?![^_])"
        for form, name in by_form.items():
            # the name of the column for the usual order may lack a word such as "original"
            for other in (re.sub(word, first, form), re.sub(rf"_?{word}", "", form)):
                if other != form and other in by_form:
                    pairs[by_form[other], name] = None
    return [*pairs]


_NUMBERED = re.compile(rf"column_|q_?\d|(?:.*_)?(?:{PERSON})_")


def numbered_answers(found: Iterable[str]) -> dict[str, str]:
    """Return the columns of three or more answers if their names differ only in endings such as 1, 2, 3 or a, b, c."""
    kinds: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in found:
        kind, _, key = folded(name).rpartition("_")
        if re.fullmatch(rf"(?:.*_)?(?:{ANSWER})s?", kind) and re.fullmatch(r"[a-z]|\d\d?", key):
            kinds[kind][key] = name
    many = [sides for sides in kinds.values() if len(sides) > 2]
    return many[0] if len(many) == 1 else {}


def alike(ours: Sequence[str], found: Sequence[str]) -> dict[str, str]:
    """Return the column with the most similar name for each of badpo's names, if the names are similar enough.

    A column is returned for at most one of badpo's names.
    """
    pairs = [
        (SequenceMatcher(None, name, folded(other)).ratio(), name, other)
        for name in ours
        for other in found
        if len(other) <= _LONGEST_NAME
    ]
    theirs: dict[str, str] = {}
    for ratio, name, other in sorted(pairs, key=lambda pair: -pair[0]):
        if ratio >= _CLOSE and name not in theirs and other not in theirs.values():
            theirs[name] = other
    return theirs
