package segmented

// Hash is the number by which a key belongs to one of n segments or buckets:
// Hash(key) modulo n. It is the same in every version of this package, since all
// processes have to agree on it, those of an earlier version too:
//
//   - FNV-1a with 64 bits over the bytes of key: begin with 14695981039346656037,
//     and for each byte: exclusive or with the byte, then times 1099511628211;
//   - then the bits are mixed: h ^= h >> 33; h *= 0xff51afd7ed558ccd;
//     h ^= h >> 33; h *= 0xc4ceb9fe1a85ec53; h ^= h >> 33.
//
// All of it is arithmetic modulo 2^64, and the remainder is that of an unsigned
// number.
func Hash(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h ^= uint64(key[i])
		h *= 1099511628211
	}
	// FNV alone leaves the low bits of sequential ids too regular.
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
