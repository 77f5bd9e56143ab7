"""What OpenVINO computes in float32 unless it is written otherwise, in graphs for bfloat16."""

from typing import Any

import numpy as np

from vitrail.inference.engines.openvino_engine import import_openvino
from vitrail.inference.whole_model import EMBEDDING

_MANY_ROWS = 32  # of a matrix: CaiT's, of a row for each head, are faster as products in float32


def prepare_for_bfloat16(model: Any) -> None:
    """Rewrite a graph so that more of it is computed in bfloat16; what it answers is the same."""
    end_in_products(model)
    mix_by_convolutions(model)
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


def mix_by_convolutions(model: Any) -> None:
    """Write the product of ResMLP's matrix and the patches as a convolution whose channels are the patches.

    A product whose first factor is constant OpenVINO computes in float32, with a change of type on both sides.
    """
    opset = import_opset()
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or any(node.get_attributes().values()):  # something is transposed
            continue
        matrix, patches = node.input_value(0).get_node(), node.input_value(1)
        if matrix.get_type_name() == "Broadcast":  # to all images
            matrix = matrix.input_value(0).get_node()
        if matrix.get_type_name() != "Constant" or len(patches.get_partial_shape()) != 3:
            continue
        weight = matrix.get_data()
        if weight.ndim != 2 or len(weight) < _MANY_ROWS:
            continue
        convolution = opset.convolution(
            patches, weight[:, :, None], strides=[1], pads_begin=[0], pads_end=[0], dilations=[1]
        )
        node.output(0).replace(convolution.output(0))


def import_opset() -> Any:
    """The operations that graphs are made of."""
    import_openvino()
    from openvino import opset13

    return opset13
