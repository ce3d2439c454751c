//! Weight matrices: packed parts, stacked along their outputs.

use std::ops::Range;
use std::sync::Mutex;

use kvasir_backend::{BackendError, DType, WeightView};
use kvasir_kernels_cpu::{Kernels, MatmulScratch, Packed, PackedLayout, WeightType};

use crate::pool::Pool;
use crate::region::Region;

/// A packed matrix on the CPU.
#[derive(Debug)]
pub struct CpuMatrix {
    parts: Vec<Part>,
    rows: usize,
    cols: usize,
}

#[derive(Debug)]
struct Part {
    layout: PackedLayout,
    region: Region,
    /// Outputs before this part.
    first_row: usize,
}

/// A piece of a product: some panels of a part.
#[derive(Clone, Debug)]
pub(crate) struct PanelRange<'a> {
    pub(crate) weights: Packed<'a>,
    pub(crate) panels: Range<usize>,
    /// Where the part's outputs start.
    pub(crate) first_row: usize,
}

impl CpuMatrix {
    /// Packs the parts; the threads of `pool` share the work.
    pub(crate) fn load(pool: &mut Pool, parts: &[WeightView<'_>]) -> Result<Self, BackendError> {
        let cols = parts.first().map_or(0, |part| part.cols);
        let mut matrix = Self {
            parts: Vec::with_capacity(parts.len()),
            rows: 0,
            cols,
        };
        for view in parts {
            if view.cols != cols {
                return Err(weight_error(
                    view,
                    format!("{} inputs beside a part with {cols}", view.cols),
                ));
            }
            let layout = check(view)?;
            let rows = matrix.rows.checked_add(view.rows);
            let first_row = matrix.rows;
            matrix.rows = rows.ok_or_else(|| weight_error(view, "too many outputs".to_owned()))?;
            let region = pack(pool, view, &layout)?;
            matrix.parts.push(Part {
                layout,
                region,
                first_row,
            });
        }
        Ok(matrix)
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.layout.bytes()).sum()
    }

    /// How many pieces of `panels_per_piece` panels there are.
    pub(crate) fn num_pieces(&self, panels_per_piece: usize) -> usize {
        self.parts
            .iter()
            .map(|part| part.layout.num_panels().div_ceil(panels_per_piece))
            .sum()
    }

    /// Piece `index` of `num_pieces`.
    pub(crate) fn piece(&self, mut index: usize, panels_per_piece: usize) -> PanelRange<'_> {
        let mut parts = self.parts.iter();
        loop {
            let part = parts.next().expect("the index is below the number of pieces");
            let num_panels = part.layout.num_panels();
            let pieces = num_panels.div_ceil(panels_per_piece);
            if index < pieces {
                let start = index * panels_per_piece;
                let panels = start..num_panels.min(start + panels_per_piece);
                return PanelRange {
                    weights: part.packed(),
                    panels,
                    first_row: part.first_row,
                };
            }
            index -= pieces;
        }
    }

    /// `out` becomes row `row`, which must exist.
    pub(crate) fn row(&self, kernels: Kernels, row: usize, scratch: &mut MatmulScratch, out: &mut [f32]) {
        let part = self
            .parts
            .iter()
            .rfind(|part| part.first_row <= row && part.layout.rows() > 0);
        let part = part.expect("the row is below the number of rows");
        kernels.dequantize_row(part.packed(), row - part.first_row, scratch, out);
    }
}

impl Part {
    fn packed(&self) -> Packed<'_> {
        Packed::new(self.layout, self.region.bytes()).expect("the region was made for the layout")
    }
}

/// The weights as f32, for vectors.
pub(crate) fn dequantize_vector(
    pool: &mut Pool,
    kernels: Kernels,
    view: WeightView<'_>,
) -> Result<Vec<f32>, BackendError> {
    if view.rows != 1 {
        return Err(weight_error(
            &view,
            format!("{} rows where a vector is expected", view.rows),
        ));
    }
    let matrix = CpuMatrix::load(pool, &[view])?;
    let mut values = vec![0.0; view.cols];
    matrix.row(kernels, 0, &mut MatmulScratch::default(), &mut values);
    Ok(values)
}

fn check(view: &WeightView<'_>) -> Result<PackedLayout, BackendError> {
    let weight_type = weight_type(view.dtype);
    let layout = PackedLayout::new(weight_type, view.rows, view.cols).ok_or_else(|| {
        let block = weight_type.block_len();
        weight_error(
            view,
            format!(
                "{} x {} {:?}: rows must be whole blocks of {block} and the size addressable",
                view.rows, view.cols, view.dtype
            ),
        )
    })?;
    let expected = layout.source_row_bytes() * view.rows;
    if view.data.len() == expected {
        return Ok(layout);
    }
    let reason = format!(
        "{} bytes for {} x {} {:?}, which takes {expected}",
        view.data.len(),
        view.rows,
        view.cols,
        view.dtype
    );
    Err(weight_error(view, reason))
}

fn pack(pool: &mut Pool, view: &WeightView<'_>, layout: &PackedLayout) -> Result<Region, BackendError> {
    let mut region = Region::new(layout.bytes(), "weights")?;
    region.prefer_huge_pages();
    if layout.panel_bytes() > 0 {
        // A piece is about a megabyte, so that few locks are made for big matrices.
        let panels = (1 << 20) / layout.panel_bytes() + 1;
        let pieces: Vec<_> = region
            .bytes_mut()
            .chunks_mut(panels * layout.panel_bytes())
            .map(Mutex::new)
            .collect();
        pool.run("load_matrix", pieces.len(), &|_, piece| {
            let mut out = pieces[piece]
                .lock()
                .expect("a piece is taken once, so nobody panicked with it");
            for (i, out) in out.chunks_mut(layout.panel_bytes()).enumerate() {
                layout.pack_panel(view.data, piece * panels + i, out);
            }
        })?;
    }
    Ok(region)
}

fn weight_error(view: &WeightView<'_>, reason: String) -> BackendError {
    BackendError::Weight {
        name: view.name.to_owned(),
        reason,
    }
}

fn weight_type(dtype: DType) -> WeightType {
    match dtype {
        DType::F32 => WeightType::F32,
        DType::F16 => WeightType::F16,
        DType::BF16 => WeightType::Bf16,
        DType::Q4_0 => WeightType::Q4_0,
        DType::Q4_1 => WeightType::Q4_1,
        DType::Q5_0 => WeightType::Q5_0,
        DType::Q5_1 => WeightType::Q5_1,
        DType::Q8_0 => WeightType::Q8_0,
        DType::Q2K => WeightType::Q2K,
        DType::Q3K => WeightType::Q3K,
        DType::Q4K => WeightType::Q4K,
        DType::Q5K => WeightType::Q5K,
        DType::Q6K => WeightType::Q6K,
    }
}
