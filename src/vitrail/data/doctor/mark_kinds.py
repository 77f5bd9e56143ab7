"""What the doctor knows of masks and objects: how much each problem matters, what it is, and what to do about it."""

from collections.abc import Mapping
from types import MappingProxyType

from vitrail.data.doctor.findings import Kind, Severity

_MUST, _LOOK, _KNOW = Severity.MUST_BE_FIXED, Severity.WORTH_A_LOOK, Severity.GOOD_TO_KNOW

# In the order in which they are reported, within their severity.
MARK_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "broken mask": Kind(
            _MUST,
            "image",
            "The mask of an image is not there, no PNG, or damaged.",
            "Training would replace the image by another at every epoch, and evaluation leaves it out.",
            "Write the mask anew as a PNG, or train with the quarantine.csv beside this report.",
        ),
        "mask of another size": Kind(
            _MUST,
            "image",
            "An image and its mask differ in size.",
            "No pixel of the mask belongs to a pixel of the image for certain; the image is left out.",
            "Make the mask anew in the size of the image; resizing it is right only if it shows the same part.",
        ),
        "values that are no class": Kind(
            _MUST,
            "image",
            "The mask holds values or colours that the list of classes has not; they are magenta here.",
            "What they stand for can't be learnt; the image is left out. Often a mask was saved as JPEG or smoothed.",
            "Add the class to the table, call it void if it is not to be learnt, or write the mask anew.",
        ),
        "another size than annotated": Kind(
            _MUST,
            "image",
            "The image has another size than its annotation says.",
            "Boxes and masks would be in the wrong places; the image is left out.",
            "Use the images that were annotated, or scale the annotations.",
        ),
        "image without mask": Kind(
            _MUST,
            "image",
            "An image has no mask of its name.",
            "Training does not begin; here the image was left out.",
            "Add the mask, or move the image elsewhere.",
        ),
        "unknown category": Kind(
            _MUST,
            "annotation",
            "An annotation is of a category that the file does not list.",
            "Training does not begin; here the annotation was left out.",
            "Add the category to the file's list, or remove the annotation.",
        ),
        "unknown image": Kind(
            _MUST,
            "annotation",
            "An annotation is of an image that the file does not list.",
            "Training does not begin; here the annotation was left out.",
            "Add the image to the file's list, or remove the annotation.",
        ),
        "faulty annotation": Kind(
            _MUST,
            "annotation",
            "An annotation can't be read, or its box ends before it begins.",
            "Training does not begin; here the annotation was left out.",
            "Correct it: often corners were written in the place of a width and a height.",
        ),
        "no labelled pixels": Kind(
            _MUST,
            "split",
            "No mask of a split has a pixel of any class: all are 255, void, or of another class that is not learnt.",
            "Training does not begin where train is meant; where val is, nothing is measured.",
            "Look at the masks and at the table of classes: often all values are ignored by mistake.",
        ),
        "no objects": Kind(
            _MUST,
            "split",
            "Not one image of a split has an object.",
            "Training does not begin: there would be nothing to learn, or nothing to measure.",
            "Put the annotations where they are looked for; look whether this is data with objects at all.",
        ),
        "hardly any objects": Kind(
            _MUST,
            "split",
            "Fewer than one in twenty images of a split have an object.",
            "Most likely annotations lie where they are not found; the model would learn to say nothing.",
            "Put the annotations where they are looked for, or take images without objects out.",
        ),
        "boxes look like corners": Kind(
            _MUST,
            "split",
            "Boxes of a COCO file are x, y, width and height; these look like the left, top, right and bottom edge.",
            "Most boxes reach too far, to the right and down: nothing true can be learnt from them, nor measured.",
            "Write width = right - left and height = bottom - top in the place of the last two numbers of `bbox`.",
        ),
        "box beside its outline": Kind(
            _LOOK,
            "image",
            "A box and the polygon of the same object overlap by less than half.",
            "One of them is wrong, and boxes and masks are both learnt from.",
            "Draw one of them anew; a box is x, y, width, height in COCO's form.",
        ),
        "box outside": Kind(
            _LOOK,
            "image",
            "A box leaves its image by more than a pixel, or lies outside as a whole; it is magenta here.",
            "In training it is cut off at the border, and what lies outside as a whole is left out.",
            "Look whether boxes are in pixels of this very image, and in the order that their format asks for.",
        ),
        "box without area": Kind(
            _LOOK,
            "image",
            "A box has no width or no height.",
            "It is left out.",
            "Delete it, or draw it anew.",
        ),
        "empty mask": Kind(
            _LOOK,
            "image",
            "A mask has no pixel of any class, or an object's outline covers no pixel.",
            "Nothing can be learnt from it.",
            "Look at it; often a mask was not finished.",
        ),
        "class not marked": Kind(
            _LOOK,
            "class",
            "A class of the list is marked in no training image.",
            "It can't be learnt, and counts as zero in a mean over classes wherever it is in val.",
            "Add images of it, or take it out of the list.",
        ),
        "objects without mask": Kind(
            _LOOK,
            "note",
            "Some objects have a mask, and some a box only.",
            "Only boxes are learnt.",
            "Add the missing masks to learn masks too.",
        ),
        "mask without image": Kind(
            _LOOK,
            "mask",
            "A mask has no image of its name.",
            "It is passed over.",
            "Look whether the image is missing, or named otherwise.",
        ),
        "nothing marked": Kind(
            _KNOW,
            "image",
            "No object is marked in an image.",
            "It teaches what the background looks like, which does no harm unless objects were forgotten.",
            "Look whether there is truly nothing.",
        ),
    }
)
