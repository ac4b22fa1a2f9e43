//! The driver's information on memory: granularities, properties of handles, address ranges.

use super::rules;
use crate::driver::lab::Lab;
use crate::driver::lab::calls::Null;
use crate::driver::seen::{NO_DEVICE, REFUSAL, Seen};
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi::{self, Code, Location, Prop};

rules! { "properties":
    /// Granularities are powers of two, and the recommended one is a multiple of the minimum.
    granularity ["granularity-too-small"],
    /// A granularity option other than minimum and recommended is refused.
    granularity_option,
    /// AMD's tests: the granularity of a device, a memory type or a location type that does not exist is refused.
    granularity_of_nothing,
    /// A null pointer for the granularity is refused.
    granularity_null,
    /// AMD's tests: null properties are refused.
    granularity_null_properties,
    /// A handle's properties equal those it was created with.
    of_a_handle,
    /// A null pointer for the properties is refused.
    null,
    /// The range of an address is that of the mapping that contains it.
    address_range,
    /// An address where nothing is mapped has no range.
    address_range_of_nothing,
}

fn granularity(lab: &Lab, seen: &mut Seen) {
    let prop = lab.prop();
    let Some(least) = seen.accepted("the least", lab.granularity(&prop, abi::MINIMUM)) else { return };
    let Some(good) = seen.accepted("the recommended", lab.granularity(&prop, abi::RECOMMENDED)) else {
        return;
    };
    for one in [least, good] {
        seen.holds(one.is_power_of_two(), || format!("{one} is not a power of two"));
    }
    seen.holds(good.is_multiple_of(least), || format!("{good} is recommended, and {least} the least"));
    let sizes = format!("{least} bytes, {good} recommended");
    if lab.is(Vendor::Hip) && least < 2 << 20 { seen.shows(sizes) } else { seen.note(sizes) }
}

fn granularity_option(lab: &Lab, seen: &mut Seen) {
    seen.refused("option 0xff", lab.granularity(&lab.prop(), 0xff), REFUSAL);
}

fn granularity_of_nothing(lab: &Lab, seen: &mut Seen) {
    let prop = lab.prop();
    let nowhere = Location { kind: abi::NOWHERE, id: lab.device };
    for (what, prop) in [
        ("the device behind the last", lab.prop_of(lab.device_count())),
        ("device -1", lab.prop_of(-1)),
        ("type 0", Prop { kind: 0, ..prop }),
        ("a place of type 0", Prop { location: nowhere, ..prop }),
    ] {
        seen.refused(what, lab.granularity(&prop, abi::MINIMUM), NO_DEVICE);
    }
}

fn granularity_null(lab: &Lab, seen: &mut Seen) {
    seen.refused("a null pointer for the granularity", lab.with_null(Null::Granularity), REFUSAL);
}

fn granularity_null_properties(lab: &Lab, seen: &mut Seen) {
    lab.not(Vendor::Cuda, "CUDA documents nothing of it, and older drivers crash");
    seen.refused("null properties", lab.with_null(Null::GranularityProp), REFUSAL);
}

fn of_a_handle(lab: &Lab, seen: &mut Seen) {
    for created in [lab.prop(), lab.shareable()] {
        let memory = lab.must(lab.create(lab.unit, &created, 0));
        let Some(prop) = seen.accepted("properties", lab.properties(memory.handle)) else { continue };
        let same = prop.kind == created.kind
            && prop.location == created.location
            && prop.handle_types == created.handle_types;
        seen.holds(same, || {
            format!("the driver reports {prop:?} for memory that was created with {created:?}")
        });
    }
}

fn null(lab: &Lab, seen: &mut Seen) {
    let memory = lab.memory(1);
    seen.refused("a null pointer", lab.with_null(Null::Properties(memory.handle)), REFUSAL);
}

fn address_range(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(6);
    let (one, two) = (lab.memory(1), lab.memory(1));
    let mappings = [lab.map_rw(reserved.at(2), &one), lab.map_rw(reserved.at(3), &two)];
    for mapping in &mappings {
        for inside in [0, 100, mapping.size as u64 - 1] {
            let Some(range) = seen.accepted("a range", lab.address_range(mapping.at + inside)) else {
                continue;
            };
            seen.holds(range == (mapping.at, mapping.size), || {
                let (base, size) = range;
                format!(
                    "{size:#x} bytes at {base:#x} for a mapping of {:#x} at {:#x}",
                    mapping.size, mapping.at
                )
            });
        }
    }
}

fn address_range_of_nothing(lab: &Lab, seen: &mut Seen) {
    let documented = [Code::INVALID_VALUE, Code::NOT_FOUND, Code::NOT_SUPPORTED];
    let reserved = lab.addresses(1);
    seen.refused("reserved addresses", lab.address_range(reserved.base), &documented);
}
