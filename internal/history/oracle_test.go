package history

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLive(t *testing.T) {
	live := Live([]Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)),
		op(1, Nested, 11, 12, Done, of("a", 5, 2), validAt(12)),
		op(1, Unlock, 20, 22, Done, of("a", 5, 1), validAt(20)),
		op(1, Unlock, 30, 32, Done, of("a", 5, 0), validAt(30)),
		op(2, TryLock, 31, 33, Done, of("b", 6, 1), validAt(33)), // valid until 133
		op(2, Unlock, 500, 600, Lost, of("b", 6, 0), lostAt(140)),
		op(1, Lock, 150, 160, Done, of("c", 7, 1), validAt(160)),
		op(1, Unlock, 500, 600, Lost, of("c", 7, 0), lostAt(200)),
		op(1, Lock, 700, 800, Done, of("d", 8, 1), validAt(800)), // and never heard of again
		op(2, Lock, 900, 910, Done, of("e", 9, 1), validAt(910)), // found to be lost by its Unlock
		op(2, Unlock, 920, 990, Lost, of("e", 9, 0), lostAt(980)),
	})
	require.Equal(t, []Interval{
		{Name: "n", Hold: "a", Owner: "owner-a", From: 10, To: 30, Weight: 1},
		{Name: "n", Hold: "b", Owner: "owner-b", From: 33, To: 133, Weight: 1, Lost: true},
		{Name: "n", Hold: "c", Owner: "owner-c", From: 160, To: 200, Weight: 1, Lost: true},
		{Name: "n", Hold: "d", Owner: "owner-d", From: 800, To: 900, Weight: 1},
		{Name: "n", Hold: "e", Owner: "owner-e", From: 910, To: 920, Weight: 1, Lost: true},
	}, live)
	require.NoError(t, Oracle(live, 1))
}

func TestOracle(t *testing.T) {
	i := func(name string, from, to int64, weight int) Interval {
		return Interval{Name: name, Hold: name, From: from, To: to, Weight: weight}
	}
	for _, c := range []struct {
		what     string
		live     []Interval
		capacity int
		good     bool
	}{
		{"none", nil, 1, true},
		{"touching", []Interval{i("a", 0, 10, 1), i("a", 10, 20, 1), i("a", 20, 21, 1)}, 1, true},
		{"overlapping", []Interval{i("a", 0, 11, 1), i("a", 10, 20, 1)}, 1, false},
		{"one in another", []Interval{i("a", 0, 100, 1), i("a", 10, 20, 1)}, 1, false},
		{"behind one that was in another", []Interval{i("a", 0, 100, 1), i("a", 50, 60, 1)}, 1, false},
		{"of two locks", []Interval{i("a", 0, 11, 1), i("b", 10, 20, 1)}, 1, true},
		{"readers", []Interval{i("a", 0, 11, 1), i("a", 5, 20, 1), i("a", 20, 30, 9)}, 9, true},
		{"a reader and a writer", []Interval{i("a", 0, 11, 1), i("a", 5, 21, 1), i("a", 20, 30, 9)}, 9, false},
	} {
		for range 2 {
			err := Oracle(c.live, c.capacity)
			require.Equal(t, c.good, err == nil, "%s: %v", c.what, err)
			slices.Reverse(c.live)
		}
	}
}
