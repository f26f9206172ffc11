"""How much longer the bound of a text is than its bytes, by language: the figures of
`docs/guides/budgets.md`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gateway.domain.operation import Operation
from gateway.domain.providers.table import TextForms
from gateway.wire.openai.request.read import read_request

GUIDE = Path(__file__).parents[3] / "docs/guides/budgets.md"
# The first sentence of the Universal Declaration of Human Rights, or of that language's wording.
SAMPLES = {
    "English": "All human beings are born free and equal in dignity and rights.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "French": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "Portuguese": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos.",
    "Polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Czech": "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "Turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Russian": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "Ukrainian": "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
    "Hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "Arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "Persian": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "Hindi": "सभी मनुष्यों को अधिकारों में जन्मजात स्वतन्त्रता प्राप्त है।",
    "Bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "Tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "Chinese": "人人生而自由，在尊严和权利上一律平等。",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、平等である。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
}


def ratio(text: str, forms: TextForms, *, is_escaped: bool = False) -> float:
    """Return the bound of a chat with this text, ten times, for each byte that it sends."""
    body = {"model": "m", "messages": [{"role": "user", "content": " ".join([text] * 10)}]}
    sent = json.dumps(body, ensure_ascii=is_escaped).encode()
    return read_request(Operation.CHAT, sent).facts.as_read(forms).body_bytes / len(sent)


@pytest.mark.parametrize("language", SAMPLES)
def test_the_guide_has_the_figures(language: str) -> None:
    """A reader finds the hold of his language, for each kind of tokenizer."""
    row = re.search(rf"^\| {language} \| (.+) \| (.+) \|$", GUIDE.read_text(), re.MULTILINE)
    found = [f"{ratio(SAMPLES[language], forms):.2f}" for forms in (TextForms.NFC, TextForms.ANY)]
    assert row is not None, f"| {language} | {' | '.join(found)} |"
    assert [*row.groups()] == found


@pytest.mark.parametrize("language", SAMPLES)
def test_no_hold_is_more_than_four_times_as_large(language: str) -> None:
    """A bound that is far too large refuses a request that would fit."""
    text = SAMPLES[language]
    assert ratio(text, TextForms.NONE) == 1
    assert ratio(text, TextForms.ANY) <= (1 if language == "English" else 4)
    assert ratio(text, TextForms.ANY, is_escaped=True) <= 1.5
