"""The one table of what the doctor knows: how much each problem matters, what it is, and what to do about it."""

from collections.abc import Mapping
from types import MappingProxyType

from vitrail.data.doctor.findings import Kind, Severity
from vitrail.data.doctor.mark_kinds import MARK_KINDS

_MUST, _LOOK, _KNOW = Severity.MUST_BE_FIXED, Severity.WORTH_A_LOOK, Severity.GOOD_TO_KNOW


def kind_of(problem: str) -> Kind:
    """The table's row, or a general one for what a source notes in words of its own."""
    return KINDS.get(problem, _NOTED)


_NOTED = Kind(
    _LOOK,
    "note",
    "Something about the source looked odd when it was opened.",
    "What is passed over or misread here is missing from training, or wrong in it.",
    "Read the note, and put the source right if it was not meant so.",
)

_STORED_OTHERWISE = "Training converts every image to 8-bit RGB, so this does no harm by itself."

_SCALED = (
    f"{_STORED_OTHERWISE} Levels are scaled from the smallest of the ranges 0 to 1, 255 and 65,535 that holds the "
    "image's, or else from its own range: images of one set may be scaled differently."
)
_LOOK_AT_THEM = "Look at them; save them as 8 bit by one rule if they differ."

# In the order in which they are reported, within their severity.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "broken file": Kind(
            _MUST,
            "file",
            "The file is empty, cut off, damaged, or no image at all.",
            "Training would replace it by another image at every epoch; a prediction on it fails.",
            "Fetch the file anew or delete it, or train with the quarantine.csv beside this report.",
        ),
        "unreadable file": Kind(
            _MUST,
            "file",
            "The file could not be read from its disk or archive.",
            "Training would replace it by another image at every epoch; a prediction on it fails.",
            "Check that the file exists and that you may read it, or train with the quarantine.csv beside this report.",
        ),
        "unread format": Kind(
            _MUST,
            "file",
            "The image is of a format that can't be read here, such as HEIC, in which phones save photos.",
            "Training would replace it by another image at every epoch; a prediction on it fails.",
            "pip install 'vitrail[heic]' for HEIC, or convert the files: `mogrify -format jpg *.heic` (ImageMagick), "
            "`sips -s format jpeg *.heic --out .` (macOS).",
        ),
        "decompression bomb": Kind(
            _MUST,
            "file",
            "The file unfolds to an enormous picture, or to a strip of a hundred thousand pixels.",
            "Decoding it would take gigabytes of memory; it is refused, and replaced in training.",
            "Delete it, or resize it with a tool of your trust; quarantine.csv leaves it out.",
        ),
        **MARK_KINDS,
        "class missing": Kind(
            _MUST,
            "class",
            "A class is in one split and not in another.",
            "Usually a folder or label is misspelt: one class becomes two, and neither can be learnt and measured.",
            "Rename it, or add the missing images.",
        ),
        "class names alike": Kind(
            _MUST,
            "class",
            "Two class names differ only in capitals or in the encoding of accents.",
            "They count as two classes, and on another file system they may become one.",
            "Give the folders or labels one spelling.",
        ),
        "single class": Kind(
            _MUST,
            "class",
            "All images are of one class.",
            "There is nothing to tell apart: accuracy is 100 % without learning anything.",
            "Check the folder that you gave: classes are the folders right below it, or below train and val.",
        ),
        "single image": Kind(
            _MUST,
            "image",
            "There is one image.",
            "Learning without labels tells images apart.",
            "Give the folder that holds many; images may lie in folders below it.",
        ),
        "split missing": Kind(
            _MUST,
            "split",
            "There is nothing to train on, or nothing to measure with.",
            "Training needs both train and val. Without val, a part of train is set aside where its classes have two "
            "images or more.",
            "Name the folders, or the entries of the manifest's column split, train and val.",
        ),
        "empty split": Kind(
            _MUST,
            "split",
            "A split has no images.",
            "Nothing can be trained on it or measured with it.",
            "Check the folder or the manifest.",
        ),
        "leakage": Kind(
            _MUST,
            "picture",
            "The same picture, pixel by pixel, is in more than one split.",
            "The model is tested on what it has been trained on: the measured accuracy is too high.",
            "Remove it from one split. quarantine.csv leaves out the training copy, so evaluation stays as it is.",
        ),
        "conflicting labels": Kind(
            _MUST,
            "picture",
            "The same picture, pixel by pixel, has different labels.",
            "At least one of them is wrong; the model cannot learn both.",
            "Keep the copy with the right label. quarantine.csv leaves out the copies in train, and no others.",
        ),
        "faulty line": Kind(
            _MUST,
            "line",
            "A line of the manifest lacks a cell, has too many, or can't be read.",
            "Training does not begin; here the line was left out.",
            "Correct the lines, or delete them.",
        ),
        "paths lead nowhere": Kind(
            _MUST,
            "note",
            "None of the files that were looked for exists.",
            "There is nothing to train on.",
            "Paths begin at the manifest's folder: move it, or write them anew.",
        ),
        "file in two splits": Kind(
            _MUST,
            "note",
            "Lines of one file, which belong together, name different splits.",
            "The file would be trained on and measured with.",
            "Give all lines of a file one split.",
        ),
        "path listed twice": Kind(
            _MUST,
            "note",
            "The manifest lists one file several times.",
            "The file counts several times, perhaps with different labels or in different splits.",
            "Keep one line of each.",
        ),
        "duplicate": Kind(
            _LOOK,
            "picture",
            "The same picture, pixel by pixel, is in one split several times.",
            "It weighs more than others in training, and counts several times in evaluation.",
            "Delete all but one, unless repeating it is intended.",
        ),
        "near leakage": Kind(
            _LOOK,
            "group",
            "Pictures in different splits that look the same: in another size, compressed anew, a moment later.",
            "The model is tested on what it has nearly seen in training: the measured accuracy may be too high.",
            "Look at them; move those that show one scene into one split.",
        ),
        "near duplicate": Kind(
            _LOOK,
            "group",
            "Pictures in one split that look the same: in another size, compressed anew, a moment later.",
            "They add little to training; where their labels differ, one is probably wrong.",
            "Look at them; keep the best of each group.",
        ),
        "imbalance": Kind(
            _LOOK,
            "split",
            "The largest class has many times the images of the smallest.",
            "The model leans towards large classes, and the overall accuracy hides what happens to small ones.",
            "Add images to small classes, or look at the accuracy per class.",
        ),
        "few images": Kind(
            _LOOK,
            "class",
            "A class has hardly any training images.",
            "What a class looks like cannot be learnt from a handful of pictures.",
            "Add images, or join the class with a related one.",
        ),
        "blank image": Kind(
            _LOOK,
            "image",
            "The image is of a single colour.",
            "It shows nothing of its class; often a download or a conversion has failed.",
            "Delete it, or fetch it anew.",
        ),
        "tiny image": Kind(
            _LOOK,
            "image",
            "The image is far smaller than the others.",
            "Enlarged to the training size it is a blur; often an icon was saved instead of the picture.",
            "Fetch the full picture, or delete it.",
        ),
        "extreme shape": Kind(
            _LOOK,
            "image",
            "One side is more than five times the other.",
            "Square crops show only a small part of it, perhaps without the object.",
            "Crop it to what it should show, or delete it.",
        ),
        "mark in labels": Kind(
            _LOOK,
            "column",
            "Labels have a mark in them that may stand between several.",
            "They are taken as names of single classes.",
            "Call the column `labels` if they list several classes.",
        ),
        "stray images": Kind(
            _LOOK,
            "folder",
            "Images lie beside the class folders.",
            "They have no class, so they are passed over.",
            "Move them into the folders of their classes, or delete them.",
        ),
        "stray folder": Kind(
            _LOOK,
            "folder",
            "A folder lies beside those of the splits.",
            "It was not read.",
            "Move its images into a split, or take it out of the data.",
        ),
        "empty class": Kind(
            _LOOK,
            "folder",
            "A class folder holds no images.",
            "It does not count as a class; perhaps a copy or a download stopped early.",
            "Fill it or delete it.",
        ),
        "no labels": Kind(
            _KNOW,
            "folder",
            "The images have no labels: there are no class folders and no column of labels.",
            "vitrail pretrain learns from such images; training a classifier does not.",
            "For classes, put each class in a folder of its own, or write a manifest.",
        ),
        "several labels": Kind(
            _KNOW,
            "column",
            "An image may have several labels, or none.",
            "Training needs a loss that allows it, and mean average precision measures it.",
            "Train with objective.loss=bce.",
        ),
        "columns of classes": Kind(
            _KNOW,
            "column",
            "Columns of 0 and 1 are taken as classes.",
            "Where images have several, training needs a loss that allows it.",
            "Train with objective.loss=bce where images have several.",
        ),
        "hidden folder": Kind(
            _KNOW,
            "folder",
            "A hidden folder lies among the images, such as .ipynb_checkpoints.",
            "It is passed over. Other programs may take it for a class, or read its pictures as copies.",
            "Delete it if nothing needs it.",
        ),
        "other files": Kind(
            _KNOW,
            "folder",
            "Files lie among the images that are none by their names.",
            "They are passed over.",
            "If they are images, give them the ending of their format.",
        ),
        "misleading name": Kind(
            _KNOW,
            "image",
            "The file's ending says another format than its content has.",
            "vitrail goes by the content; other programs may fail.",
            "Rename the file.",
        ),
        "turned by EXIF": Kind(
            _KNOW,
            "image",
            "The camera's note says that the picture is to be turned or mirrored.",
            "vitrail follows the note, in training and in prediction; programs that do not see it lying on its side.",
            "Nothing, as long as all programs that read the data follow the note.",
        ),
        "animation": Kind(
            _KNOW,
            "image",
            "The file holds several frames.",
            "Only the first is used; it is often a title or empty.",
            "Look at the first frames; save the frame that you want as an image of its own.",
        ),
        "greyscale": Kind(_KNOW, "image", "Some of the images have no colour.", _STORED_OTHERWISE, "Nothing."),
        "CMYK": Kind(
            _KNOW,
            "image",
            "The colours are those of printing.",
            f"{_STORED_OTHERWISE} Colours may look a little off.",
            "Convert them to RGB if the colours matter.",
        ),
        "16 bit": Kind(
            _KNOW,
            "image",
            "More than eight bits are stored per channel.",
            f"{_STORED_OTHERWISE} But where only the lowest bits are used, the picture becomes black.",
            "Look at them; stretch dark ones to the full range.",
        ),
        "32 bit": Kind(_KNOW, "image", "Levels are stored as whole numbers of 32 bits.", _SCALED, _LOOK_AT_THEM),
        "floating point": Kind(_KNOW, "image", "Levels are stored as floating point.", _SCALED, _LOOK_AT_THEM),
        "transparency": Kind(
            _KNOW,
            "image",
            "Parts of the image may be transparent.",
            f"{_STORED_OTHERWISE} What is transparent becomes white.",
            "Nothing, unless another background is wanted.",
        ),
        "palette": Kind(_KNOW, "image", "The colours come from a small table.", _STORED_OTHERWISE, "Nothing."),
    }
)
