package core_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

var names = []struct {
	name string
	why  string // part of the reason of the refusal, "" if there is none
}{
	{"orders", ""},
	{"orders:4711", ""},
	{"a", ""},
	{" ", ""},
	{strings.Repeat("x", 512), ""},
	{"größe 日本", ""},
	{"\x00", ""},
	{"a\x00b", ""},
	{"\xff\xfe", ""},
	{"%s\n\"'\\", ""},
	{"a{b}", ""},
	{"{b}", ""},
	{"{b}c", ""},
	{"a{b}c}", ""},
	{"a{b}c{d}", ""},
	{"a{b}{}", ""},
	{"a{b}{", ""},
	{"a{b{c}", ""},
	{"a{{b}}", ""},
	{"{\x00}", ""},
	{"{" + strings.Repeat("x", 510) + "}", ""},

	{"", "it is empty"},
	{strings.Repeat("x", 513), "has 513 bytes, the limit is 512"},
	{strings.Repeat("{", 1<<20), "the limit is 512"},
	{strings.Repeat("ö", 257), "has 514 bytes"},
	{"a{b", "a { without a }"},
	{"{", "a { without a }"},
	{"a{b{", "a { without a }"},
	{"a}b", "a } without a {"},
	{"}", "a } without a {"},
	{"}a{b}", "a } before its first {"},
	{"a}b{c", "a } before its first {"},
	{"}{", "a } before its first {"},
	{"{}", "hash tag {} is empty"},
	{"a{}b", "hash tag {} is empty"},
	{"a{}{b}", "hash tag {} is empty"},
	{"{}}", "hash tag {} is empty"},
}

func TestCheckName(t *testing.T) {
	for _, c := range names {
		t.Run(c.name[:min(40, len(c.name))], func(t *testing.T) {
			err := core.CheckName(c.name)
			if c.why == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, fault.ErrName)
			require.ErrorContains(t, err, c.why)
			require.Less(t, len(err.Error()), 1000, "not the whole of a long name")
		})
	}
}

// derived are the keys and channels that kinds make of a name.
func derived(name string) []string {
	return []string{
		core.Prefixed("redisson_lock__channel", name),
		core.Prefixed("redisson_lock_token", name),
		core.Prefixed("redisson_unlock_latch", name) + ":x",
		core.Prefixed("holdfast_fence", name),
		core.Prefixed("p", name) + ":{y}",
		core.Prefixed("p", name) + ":}",
	}
}

func TestPrefixed_isAsRedissonHasIt(t *testing.T) {
	require.Equal(t, "redisson_lock__channel:{orders}", core.Prefixed("redisson_lock__channel", "orders"))
	require.Equal(t, "redisson_lock__channel:a{b}c", core.Prefixed("redisson_lock__channel", "a{b}c"))
}

// FuzzCheckName: whatever CheckName accepts has all its keys in one slot, and two
// names never have a key in common.
func FuzzCheckName(f *testing.F) {
	for _, c := range names {
		if len(c.name) < 1<<10 {
			f.Add(c.name)
		}
	}
	f.Fuzz(func(t *testing.T, name string) {
		err := core.CheckName(name)
		if err != nil {
			require.ErrorIs(t, err, fault.ErrName)
			return
		}
		require.NotEmpty(t, name)
		require.LessOrEqual(t, len(name), core.MaxName)
		for _, key := range derived(name) {
			require.Equal(t, slot(name), slot(key), "%q and %q", name, key)
		}
	})
}

// Names that are refused for their braces would come apart, with few exceptions
// for the sake of a rule that can be told.
func TestCheckName_refusesNamesThatComeApart(t *testing.T) {
	for _, name := range []string{"a{b", "{", "a}b", "}", "{}", "a{}b", "{}}", "a{}{b}"} {
		require.Error(t, core.CheckName(name))
		apart := false
		for _, key := range derived(name) {
			apart = apart || slot(key) != slot(name)
		}
		require.True(t, apart, name)
	}
}

// The slots of this test are the server's.
func TestSlot_isTheServers(t *testing.T) {
	s := redistest.Run(t, redistest.Options{Args: []string{"--cluster-enabled", "yes"}}) // no need to serve any
	require.Equal(t, 12739, slot("123456789"), "the check value of the specification")
	for _, c := range names {
		if c.name == "" || len(c.name) > core.MaxName {
			continue
		}
		for _, key := range append(derived(c.name), c.name) {
			require.Equal(t, s.Do(t, "CLUSTER", "KEYSLOT", key), strconv.Itoa(slot(key)), "%q", key)
			require.EqualValues(t, slot(key), core.Slot(key), "%q", key)
		}
	}
}

// slot is the hash slot of a key, as the specification of Redis Cluster has it:
// of what is between the first { and the first } after it, unless that is
// nothing; else of the whole key.
func slot(key string) int {
	if _, tag, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok = strings.Cut(tag, "}"); ok && tag != "" {
			key = tag
		}
	}
	return int(crc16(key)) % 16384
}

// crc16 is CRC-16/XMODEM.
func crc16(s string) (crc uint16) {
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc
}
