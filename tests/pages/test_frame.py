"""The frame of a page, its tables and its pictures: structure, and everything from outside escaped."""

from vitrail.pages.frame import Page, PageSection, Verdict, render_page
from vitrail.pages.pictures import embed_image, render_figure, render_image
from vitrail.pages.tables import render_more, render_table
from vitrail.pages.words import Html, count, percent, shorten, text, visible

EVIL = "<script>\"'&"


def test_all_that_stands_on_a_page_is_escaped_but_the_body_of_a_section() -> None:
    page = render_page(
        Page(
            title=EVIL,
            kicker=EVIL,
            window_title=EVIL,
            verdict=Verdict(EVIL, "must"),
            lead=[EVIL],
            cards=[(EVIL, EVIL)],
            sections=[PageSection(EVIL, "<b>bold</b>", anchor=EVIL)],
        )
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;&quot;&#x27;&amp;") == 9
    assert "<b>bold</b>" in page


def test_a_section_has_its_anchor_edge_and_width() -> None:
    section = PageSection("Found", "body", anchor="found", aside="<i>2</i>", tone="look", is_narrow=True)
    page = render_page(Page("title", "vitrail check", [section, PageSection("Plain", "body")]))
    assert '<section id="found" class="narrow edged look">\n<h2>Found <i>2</i></h2>\nbody\n</section>' in page
    assert "<section>\n<h2>Plain</h2>" in page


def test_a_page_with_its_pictures_inside_may_fetch_nothing() -> None:
    own = Page("title", "vitrail check", [])
    assert "default-src 'none'" in render_page(own)
    assert "Content-Security-Policy" not in render_page(Page("title", "vitrail explain", [], has_own_pictures=False))


def test_cells_of_a_table_are_escaped_unless_they_are_html() -> None:
    table = render_table([(EVIL, Html("<b>x</b>"), 3, 0.123456, None)], columns=[EVIL], style="numbers")
    assert "<script" not in table
    assert table.startswith('<div class="scroll"><table class="numbers"><tr><th>&lt;script&gt;')
    assert '<td><b>x</b></td><td class="number">3</td><td class="number">0.1235</td><td></td>' in table


def test_how_many_more_there_are_is_said_only_if_there_are() -> None:
    assert render_more(0) == ""
    assert render_more(1200, where="findings.json") == '<p class="more">and 1,200 more: see findings.json</p>'


def test_an_image_is_inside_the_page_or_an_empty_box() -> None:
    assert embed_image(b"abc", kind="png") == "data:image/png;base64,YWJj"
    figure = render_figure(render_image("a.png", title=EVIL), text(EVIL), title=EVIL)
    assert "<script" not in figure
    assert 'src="a.png"' in figure
    assert render_image(None) == '<div class="none"></div>'


def test_words_are_made_visible_and_html_stays() -> None:
    assert visible("a\x1b[1m\udcff") == "a\\x1b[1m\\udcff"
    assert text("a\n<b>") == "a\\n&lt;b&gt;"
    assert text(Html("<b>")) == "<b>"
    assert text(text("<b>")) == "&lt;b&gt;"  # once is enough
    assert (count(1, "image"), count(1200, "image"), percent(0.125, digits=1)) == ("1 image", "1,200 images", "12.5 %")
    assert shorten("American Staffordshire terrier", 15) == "American…rrier"
