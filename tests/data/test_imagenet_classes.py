"""Names of ImageNet's classes: words that are told apart, and the other names that each has."""

from vitrail.data.sources.imagenet_classes import imagenet_classes, unique_words


def test_a_class_is_called_by_its_first_name_unless_another_has_it() -> None:
    descriptions = ["tench, Tinca tinca", "crane", "crane", "maillot", "maillot, tank suit"]
    words = unique_words(descriptions, ("n1", "n2", "n3", "n4", "n5"))
    assert words == ("tench", "crane (n2)", "crane (n3)", "maillot", "maillot, tank suit")


def test_every_class_has_a_word_of_its_own_and_is_found_by_its_id() -> None:
    classes = imagenet_classes()
    assert len(set(classes.words)) == len(classes.ids) == 1000
    assert [classes.others[name] for name in classes.ids] == list(range(1000))
    assert "crane" not in classes.others, "two classes are described so"
