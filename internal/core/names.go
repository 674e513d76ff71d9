package core

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// MaxName is the length in bytes of the longest name, prefix and id included.
const MaxName = 512

// CheckName reports why name cannot be a lock's, as ErrName. Names whose derived
// keys could lie in another slot than the name itself are refused in every mode:
// a lock that works only until somebody moves to a cluster is a trap.
func CheckName(name string) error {
	open, shut := strings.IndexByte(name, '{'), strings.IndexByte(name, '}')
	why := ""
	switch {
	case name == "":
		why = "it is empty"
	case len(name) > MaxName:
		return fmt.Errorf("%w: %q… has %d bytes, the limit is %d", fault.ErrName, name[:32], len(name), MaxName)
	case open < 0 && shut < 0:
		return nil
	case open < 0:
		why = "it has a } without a {"
	case shut < 0:
		why = "it has a { without a }"
	case shut < open:
		why = "it has a } before its first {"
	case shut == open+1:
		why = "its hash tag {} is empty"
	default:
		return nil
	}
	return fmt.Errorf("%w: %q: %s", fault.ErrName, name, why)
}

// Prefixed is the key or channel named prefix that belongs to name, in the same
// slot.
func Prefixed(prefix, name string) string {
	if strings.IndexByte(name, '{') >= 0 {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// Suffixed is the key of name that ends in suffix, in the same slot.
func Suffixed(name, suffix string) string {
	if strings.IndexByte(name, '{') >= 0 {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// Slot is the slot of a cluster that key lies in. Clients of a single server use
// it too: what is ordered by slots must have one order for all.
func Slot(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	crc := uint16(0) // CRC-16/XMODEM
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return crc % 16384
}
