//! The sizes of the rings to other processes of this machine.

use bywire::{Geometry, LaneGeometry};

use crate::backlog::{LANE_BYTES, LANE_SLOTS};

/// Candidates for the longest datagram, best first: a whole superframe, then the most that a smaller ring can carry.
const DATAGRAM_BYTES: [u32; 2] = [65_472, 32_768];

/// The geometry of the rings. They hold about as much as a core moves while the other end waits for its turn on one
/// core.
pub fn geometry() -> Geometry {
    let mut geometry = Geometry::default();
    for fragment_bytes in DATAGRAM_BYTES {
        let lane = LaneGeometry { slots: LANE_SLOTS, bulk_bytes: LANE_BYTES };
        let small = LaneGeometry { slots: 64, bulk_bytes: (4 * fragment_bytes).next_power_of_two() };
        geometry = Geometry { lanes: [small, small, lane], fragment_bytes };
        if geometry.check().is_ok() {
            break;
        }
    }
    geometry
}
