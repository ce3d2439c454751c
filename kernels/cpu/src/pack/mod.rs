//! Packing: from a model file's blocks to panels of 16 outputs. [`crate::format`] has the packed layouts.

mod blocks;

use crate::format::RecordShape;
use crate::simd::LANES;
use crate::weight_type::WeightType;
use blocks::Block;

/// Size and format of a packed matrix: `rows` outputs of `cols` inputs, in panels of 16 outputs. The lanes of the last
/// panel that are no outputs hold zeros.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PackedLayout {
    weight_type: WeightType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    panel_bytes: usize,
}

/// A packed matrix.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    layout: PackedLayout,
    data: &'a [u8],
}

impl PackedLayout {
    /// The layout of a matrix; `None` if `cols` isn't a multiple of the type's block length or a size overflows.
    pub fn new(weight_type: WeightType, rows: usize, cols: usize) -> Option<Self> {
        let row_bytes = weight_type.row_bytes(cols)?;
        row_bytes.checked_mul(rows)?;
        let record = RecordShape::of(weight_type);
        let panel_bytes = match weight_type {
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 => row_bytes.checked_mul(LANES)?,
            _ => (cols / record.len).checked_mul(record.bytes)?,
        };
        rows.div_ceil(LANES).checked_mul(panel_bytes)?;
        Some(Self {
            weight_type,
            rows,
            cols,
            row_bytes,
            panel_bytes,
        })
    }

    /// Storage type of the source.
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of a row in the source.
    pub fn source_row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Panels of 16 outputs.
    pub fn num_panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes of a packed panel.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Bytes of the packed matrix.
    pub fn bytes(&self) -> usize {
        self.num_panels() * self.panel_bytes
    }

    /// Outputs of panel `panel`: 16, or what is left for the last one.
    pub fn panel_rows(&self, panel: usize) -> usize {
        (self.rows - panel * LANES).min(LANES)
    }

    /// Packs panel `panel` of `source` (the whole matrix, row-major) into `out`, which must be zeroed.
    ///
    /// # Panics
    /// If `source` or `out` doesn't have the layout's size, or there is no such panel.
    pub fn pack_panel(&self, source: &[u8], panel: usize, out: &mut [u8]) {
        assert_eq!(
            source.len(),
            self.rows * self.row_bytes,
            "source has the layout's size"
        );
        assert_eq!(out.len(), self.panel_bytes, "a panel has the layout's size");
        assert!(
            panel < self.num_panels(),
            "panel {panel} of {}",
            self.num_panels()
        );
        let first = panel * LANES;
        for lane in 0..self.panel_rows(panel) {
            let row = &source[(first + lane) * self.row_bytes..][..self.row_bytes];
            match self.weight_type {
                WeightType::F32 => interleave::<4>(row, lane, out),
                WeightType::F16 | WeightType::Bf16 => interleave::<2>(row, lane, out),
                quantized => pack_row(quantized, row, lane, out),
            }
        }
    }
}

impl<'a> Packed<'a> {
    /// A packed matrix in `data`; `None` if it doesn't have the layout's size.
    pub fn new(layout: PackedLayout, data: &'a [u8]) -> Option<Self> {
        (data.len() == layout.bytes()).then_some(Self { layout, data })
    }

    /// Size and format.
    pub fn layout(&self) -> &PackedLayout {
        &self.layout
    }

    /// The bytes of panel `panel`.
    #[inline(always)]
    pub(crate) fn panel(&self, panel: usize) -> &'a [u8] {
        &self.data[panel * self.layout.panel_bytes..][..self.layout.panel_bytes]
    }
}

fn interleave<const BYTES: usize>(row: &[u8], lane: usize, out: &mut [u8]) {
    let values = row.as_chunks::<BYTES>().0;
    let slots = out.as_chunks_mut::<BYTES>().0;
    for (k, value) in values.iter().enumerate() {
        slots[k * LANES + lane] = *value;
    }
}

fn pack_row(weight_type: WeightType, row: &[u8], lane: usize, out: &mut [u8]) {
    let shape = RecordShape::of(weight_type);
    let blocks = row.chunks_exact(weight_type.block_bytes());
    for (source, record) in blocks.zip(out.chunks_exact_mut(shape.bytes)) {
        let block = Block::read(weight_type, source);
        write_scales(&shape, &block, lane, record);
        for (group, quants) in block.quants[..shape.len]
            .chunks_exact(shape.group_len)
            .enumerate()
        {
            let at = shape.first_quants + group * shape.group_stride;
            write_quants(&shape, quants, lane, &mut record[at..]);
        }
    }
}

fn write_scales(shape: &RecordShape, block: &Block, lane: usize, record: &mut [u8]) {
    record[2 * lane..][..2].copy_from_slice(&block.scale);
    if let Some(min) = block.min {
        record[32 + 2 * lane..][..2].copy_from_slice(&min);
    }
    for (group, scale) in block.group_scales.iter().enumerate().take(block.num_groups) {
        let quants_at = shape.first_quants + group * shape.group_stride;
        if block.min.is_some() {
            record[quants_at - 32 + lane] = scale.cast_unsigned();
            record[quants_at - 16 + lane] = block.group_mins[group].cast_unsigned();
        } else {
            record[quants_at - 16 + lane] = scale.cast_unsigned();
        }
    }
}

fn write_quants(shape: &RecordShape, quants: &[i8], lane: usize, out: &mut [u8]) {
    if shape.bits == 8 {
        for (slots, q) in out.chunks_exact_mut(LANES).zip(quants) {
            slots[lane] = q.cast_unsigned();
        }
        return;
    }
    let words = out.as_chunks_mut::<4>().0;
    for (words, quants) in words
        .chunks_exact_mut(LANES)
        .zip(quants.chunks_exact(32 / shape.bits))
    {
        let mut word = 0;
        for q in quants.iter().rev() {
            word = (word << shape.bits) | (i32::from(*q) + shape.zero).cast_unsigned();
        }
        words[lane] = word.to_le_bytes();
    }
}
