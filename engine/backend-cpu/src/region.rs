//! Zeroed memory that costs nothing until it is touched.

use kvasir_backend::BackendError;
use memmap2::{MmapMut, MmapOptions};

/// Anonymous pages. Nothing is resident until it is written, so a reservation may be larger than what is used.
#[derive(Debug)]
pub(crate) struct Region {
    /// None for no bytes: there are no empty maps.
    map: Option<MmapMut>,
}

impl Region {
    /// Reserves `bytes` for `what`.
    pub(crate) fn new(bytes: usize, what: &'static str) -> Result<Self, BackendError> {
        if bytes == 0 {
            return Ok(Self { map: None });
        }
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon();
        map.map(|map| Self { map: Some(map) })
            .map_err(|_| BackendError::OutOfMemory { what, bytes })
    }

    /// Asks for huge pages: weights are read from end to end, and with small pages each step misses the TLB for every 4 KB.
    pub(crate) fn prefer_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            // Only advice: without huge pages everything works, slower.
            map.advise(memmap2::Advice::HugePage).ok();
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
    }

    /// The bytes as f32: pages are aligned and every bit pattern is a value.
    pub(crate) fn floats(&self) -> &[f32] {
        bytemuck::cast_slice(self.bytes())
    }

    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }
}
