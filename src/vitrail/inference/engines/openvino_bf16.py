"""What OpenVINO computes in float32 unless it is written otherwise, in graphs for bfloat16."""

from typing import Any

import numpy as np

from vitrail.inference.engines.openvino_engine import import_openvino
from vitrail.inference.whole_model import EMBEDDING

_MANY_ROWS = 32  # of a matrix: CaiT's, of a row for each head, are faster as products in float32


def prepare_for_bfloat16(model: Any) -> None:
    """Rewrite a graph so that more of it is computed in bfloat16; what it answers is the same."""
    end_in_products(model)
    free_matrices(model)
    model.validate_nodes_and_infer_types()


def end_in_products(model: Any) -> None:
    """Let embeddings pass a product with the identity, which changes nothing but how they are computed.

    What follows the last product of a graph OpenVINO computes in float32, to be exact. An embedding is a norm of the
    sum of all residual layers: behind it all of them would be added in float32, with a change of type around each.
    """
    opset = import_opset()
    for result in model.get_results():
        tensor = result.input_value(0)
        names, shape = tensor.get_names(), tensor.get_partial_shape()
        if EMBEDDING in names and len(shape) == 2:
            identity = np.eye(shape[1].get_length(), dtype=np.float32)
            product = opset.matmul(tensor, identity, transpose_a=False, transpose_b=False).output(0)
            tensor.get_tensor().set_names(set())
            product.get_tensor().set_names(names)
            result.input(0).replace_source_output(product)


def free_matrices(model: Any) -> None:
    """Add a zero that depends on the images to the matrix that mixes ResMLP's patches.

    A product whose first factor is constant OpenVINO computes in float32, with a change of type on both sides; one of
    two factors that it does not know before it computes in bfloat16.
    """
    opset = import_opset()
    zero = None
    for node in model.get_ordered_ops():
        weight = _find_matrix(node)
        if weight is None:
            continue
        if zero is None:
            images = model.inputs[0]
            one = np.ones(len(images.get_partial_shape()), dtype=np.int64)
            byte = opset.slice(images, 0 * one, one, one)
            smallest = opset.minimum(opset.convert(byte, "f32"), np.float32(0.0))  # no byte is below it
            zero = opset.reshape(smallest, np.ones(2, dtype=np.int64), special_zero=False)
        node.input(0).replace_source_output(opset.add(opset.constant(weight), zero).output(0))


def _find_matrix(node: Any) -> np.ndarray | None:
    """The constant matrix that a node multiplies patches with from the left; None where it is no such node."""
    if node.get_type_name() != "MatMul" or any(node.get_attributes().values()):  # something is transposed
        return None
    matrix, patches = node.input_value(0).get_node(), node.input_value(1)
    if matrix.get_type_name() == "Broadcast":  # to all images
        matrix = matrix.input_value(0).get_node()
    if matrix.get_type_name() != "Constant" or len(patches.get_partial_shape()) != 3:
        return None
    weight: np.ndarray = matrix.get_data()
    return weight if weight.ndim == 2 and len(weight) >= _MANY_ROWS else None


def import_opset() -> Any:
    """The operations that graphs are made of."""
    import_openvino()
    from openvino import opset13

    return opset13
