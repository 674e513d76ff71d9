package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func reads(o *Op)  { o.Side = ReadSide }
func writes(o *Op) { o.Side = WriteSide }
func under(hold string) func(*Op) {
	return func(o *Op) { o.Under = hold }
}

func next(hold string) func(*Op) { return func(o *Op) { o.Next = hold } }

var rwHistories = []struct {
	name string
	good bool
	ops  []Op
}{
	{"nothing", true, nil},
	{"readers together", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads), op(2, Lock, 0, 10, Done, of("b", 0, 1), reads),
		op(1, Unlock, 20, 30, Done, of("a", 0, 0), reads), op(2, Unlock, 20, 30, Done, of("b", 0, 0), reads),
	}},
	{"a writer beside a reader", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads), op(2, Lock, 11, 15, Done, of("b", 5, 1), writes),
		op(1, Unlock, 20, 30, Done, of("a", 0, 0), reads),
	}},
	{"a reader beside a writer", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(2, Lock, 11, 15, Done, of("b", 0, 1), reads),
		op(1, Unlock, 20, 30, Done, of("a", 5, 0), writes),
	}},
	{"a writer's own reader", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(1, Lock, 11, 15, Done, of("b", 0, 1), reads, under("a")),
		op(1, Unlock, 20, 30, Done, of("a", 5, 0), writes), op(1, Unlock, 40, 50, Done, of("b", 0, 0), reads),
	}},
	{"a writer after a writer whose own reader is left", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(1, Lock, 11, 15, Done, of("b", 0, 1), reads, under("a")),
		op(1, Unlock, 20, 30, Done, of("a", 5, 0), writes), op(2, Lock, 31, 35, Done, of("c", 6, 1), writes),
		op(1, Unlock, 40, 50, Done, of("b", 0, 0), reads),
	}},
	{"two writers", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(2, Lock, 11, 15, Done, of("b", 6, 1), writes),
		op(1, Unlock, 20, 30, Done, of("a", 5, 0), writes),
	}},
	{"a token that falls", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(1, Unlock, 20, 30, Done, of("a", 5, 0), writes),
		op(1, Lock, 40, 50, Done, of("b", 4, 1), writes),
	}},
	{"nested readers", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads), op(1, Nested, 11, 12, Done, of("a", 0, 2), reads),
		op(1, Unlock, 20, 30, Done, of("a", 0, 1), reads), op(1, Unlock, 31, 32, Done, of("a", 0, 0), reads),
	}},
	{"a count that is wrong", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads), op(1, Nested, 11, 12, Done, of("a", 0, 3), reads),
	}},
	{"a downgrade", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(1, Downgrade, 11, 20, Done, of("a", 0, 0), writes, next("b")),
		op(2, Lock, 12, 19, Done, of("c", 0, 1), reads), op(1, Unlock, 30, 31, Done, of("b", 0, 0), reads),
		op(2, Unlock, 32, 33, Done, of("c", 0, 0), reads), op(2, Lock, 40, 50, Done, of("d", 6, 1), writes),
	}},
	{"a writer after a downgrade", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(1, Downgrade, 11, 20, Done, of("a", 0, 0), writes, next("b")),
		op(2, Lock, 21, 25, Done, of("c", 6, 1), writes), op(1, Unlock, 30, 31, Done, of("b", 0, 0), reads),
	}},
	{"a reader before a downgrade", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(2, Lock, 11, 12, Done, of("c", 0, 1), reads),
		op(1, Downgrade, 13, 20, Done, of("a", 0, 0), writes, next("b")),
	}},
	{"an upgrade that is refused", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads), op(1, Upgrade, 11, 12, Refused, of("a", 0, 0), reads),
		op(1, Unlock, 20, 30, Done, of("a", 0, 0), reads),
	}},
	{"an upgrade of one who does not read", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads), op(1, Unlock, 11, 12, Done, of("a", 0, 0), reads),
		op(1, Upgrade, 20, 30, Refused, of("a", 0, 0), reads),
	}},
	{"a reader that was lost", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads, validAt(10)), op(2, Lock, 5, 60, Done, of("b", 5, 1), writes),
		op(1, Unlock, 70, 71, Lost, of("a", 0, 0), reads, lostAt(50)),
	}},
	{"a reader that was lost too late", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads, validAt(10)), op(2, Lock, 5, 60, Done, of("b", 5, 1), writes),
		op(1, Unlock, 90, 91, Lost, of("a", 0, 0), reads, lostAt(80), validAt(75)),
		op(2, Unlock, 95, 96, Done, of("b", 5, 0), writes, validAt(94)),
	}},
	{"a downgrade that failed", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), writes), op(1, Downgrade, 11, 20, Unknown, of("a", 0, 0), writes),
		op(2, Lock, 30, 35, Done, of("c", 6, 1), writes),
	}},
	{"an unlock whose outcome is unknown", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1), reads), op(1, Unlock, 11, 20, Unknown, of("a", 0, 0), reads),
		op(2, Lock, 15, 90, Done, of("c", 6, 1), writes),
	}},
}

func TestRW(t *testing.T) {
	for _, h := range rwHistories {
		t.Run(h.name, func(t *testing.T) {
			err := Check(RW{}, h.ops, time.Minute)
			require.Equal(t, h.good, err == nil, "%v", err)
		})
	}
}

func TestLiveRW(t *testing.T) {
	h := func(name string) []Op {
		for _, h := range rwHistories {
			if h.name == name {
				return h.ops
			}
		}
		panic(name)
	}
	for name, good := range map[string]bool{
		"readers together": true, "a writer beside a reader": false, "a writer's own reader": true,
	} {
		ops := h(name)
		for i := range ops {
			ops[i].Until = 1000
		}
		require.Equal(t, good, Oracle(LiveRW(ops, 100), 100) == nil, name)
	}
}
