package scripts_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/scripts"
)

// counts are what a bucket has, and what it has sent and got.
func (k *timed) counts() string {
	k.t.Helper()
	return strings.ReplaceAll(text(k.raw(k.t, "HMGET", k.keys[0], "free", "reserved", "given", "taken", "transit", "raised")), "<nil>", "-")
}

func (k *timed) give(to, units int, half bool, number int, large bool) string {
	k.t.Helper()
	flag := map[bool]string{true: "1", false: "0"}
	return k.do(scripts.StockGive, fmt.Sprint(to), fmt.Sprint(units), flag[half], fmt.Sprint(number), flag[large])
}

func (k *timed) arrived(by int, number string) string {
	k.t.Helper()
	return k.bare(scripts.StockArrived, k.keys[:1], "id", fmt.Sprint(by), number)
}

func (k *timed) view(orders ...string) string {
	k.t.Helper()
	return k.bare(scripts.StockView, []string{k.keys[0], k.keys[1], k.keys[2], k.keys[4]}, append([]string{"id"}, orders...)...)
}

func TestStock_aTransferGoesOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		from := newTimed(t, b, name(t)+":{a}", 10, 0, true)
		to := newTimed(t, b, name(t)+":{b}", 0, 0, true)
		const first, second = "1000000000", "1000001000"

		require.Equal(t, "["+first+" 3 7]", from.give(1, 3, false, 0, false))
		require.Equal(t, "["+first+" 3 7]", from.give(1, 3, false, 0, false), "a repeat")
		require.Equal(t, "["+first+" 3 7]", from.give(1, 5, true, 0, true), "another that wants more")
		require.Equal(t, "[7 0 3 - 3 0]", from.counts())
		require.Contains(t, from.view(), "[1 "+first+" 3]")

		require.Equal(t, "3", to.do(scripts.StockTake, "0 "+first+" 3 "))
		require.Equal(t, "3", to.do(scripts.StockTake, "0 "+first+" 3 "), "a repeat")
		require.Equal(t, "[3 0 - 3 - 1]", to.counts())

		require.Equal(t, "0", from.arrived(2, first), "by another bucket")
		require.Equal(t, "0", from.arrived(1, "999999999"), "another")
		require.Equal(t, "1", from.arrived(1, first))
		require.Equal(t, "0", from.arrived(1, first), "a repeat")
		require.Equal(t, "[7 0 3 - 0 0]", from.counts())
		require.NotContains(t, from.view(), first)

		from.now++
		require.Equal(t, "["+second+" 1 6]", from.give(1, 1, false, 0, false))
		require.Equal(t, "0", from.arrived(1, first), "a late copy")
		require.Equal(t, "4", to.do(scripts.StockTake, "0 "+second+" 1 0 "+first+" 3 "), "the old one again")
		require.Equal(t, "4", to.do(scripts.StockTake, "0 "+first+" 3 "), "a late copy")
		require.Equal(t, "[4 0 - 4 - 2]", to.counts())
		require.Equal(t, "9", to.do(scripts.StockTake, "2 1 5 "), "each sender has its own numbers")
	})
}

func TestStockGive_sendsWhatItMay(t *testing.T) {
	for _, c := range []struct {
		name      string
		units     int
		before    func(k *timed)
		to, need  int
		half      bool
		large     bool
		want      string
		afterward string
	}{
		{"what is needed", 10, nil, 1, 4, false, false, "[1001000000 4 6]", "[6 0 4 - 4 0]"},
		{"half of what is here", 10, nil, 1, 4, true, false, "[1001000000 5 5]", "[5 0 5 - 5 0]"},
		{"more than half", 10, nil, 1, 7, true, false, "[1001000000 7 3]", "[3 0 7 - 7 0]"},
		{"half of an odd number", 3, nil, 1, 1, true, false, "[1001000000 1 2]", "[2 0 1 - 1 0]"},
		{"what there is", 3, nil, 1, 4, true, true, "[1001000000 3 0]", "[0 0 3 - 3 0]"},
		{"nothing", 0, nil, 1, 4, true, true, "[0 0 0]", "[0 0 - - - 0]"},
		{
			"what is over, if it is needed", 3, func(k *timed) { k.do(scripts.StockReserve, "", "a", "2", "10", "", "r") },
			1, 2, false, false, "[1001000000 2 1]", "[1 0 2 - 2 1]",
		},
		{
			"nothing over, if it is not", 3, func(k *timed) { k.do(scripts.StockReserve, "", "a", "2", "10", "", "r") },
			1, 1, false, false, "[1001000000 1 0]", "[0 2 1 - 1 0]",
		},
		{
			"numbers rise when the clock falls", 3, func(k *timed) {
				k.now += 5000
				k.give(1, 1, false, 0, false)
				k.now -= 5000
			}, 2, 1, false, false, "[1005000001 1 1]", "[1 0 2 - 2 0]",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, b *backend) {
				k := newTimed(t, b, name(t), c.units, 0, true)
				if c.before != nil {
					c.before(k)
				}
				k.now += 1000
				require.Equal(t, c.want, k.give(c.to, c.need, c.half, 0, c.large))
				require.Equal(t, c.afterward, k.counts())
			})
		})
	}
}

// A bucket that collects units for a large order of its own keeps them for a moment
// from large orders of higher buckets.
func TestStockGive_twoLargeOrdersDoNotTakeFromEachOther(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newTimed(t, b, name(t), 3, 0, true)
		require.Contains(t, k.do(scripts.StockReserve, "", "a", "4", "60000", "", "r"), "[soldout 3 ")
		require.Equal(t, "[-1 100 3]", k.give(2, 2, false, 1, true))
		require.Equal(t, "[1000000000 1 2]", k.give(0, 1, false, 1, true), "a lower one goes first")
		require.Equal(t, "[1000000001 1 1]", k.give(2, 1, false, 1, false), "a small one always")
		require.Equal(t, "[-1 100 1]", k.give(3, 1, false, 1, true))
		k.now += 99
		require.Equal(t, "[-1 1 1]", k.give(3, 1, false, 1, true))
		require.Contains(t, k.do(scripts.StockReserve, "", "b", "1", "60000", "", "r"), "[1000099]")
		require.Contains(t, k.do(scripts.StockReserve, "4 1 2 ", "c", "1", "60000", "", "r"), "[1000099]")
		require.Equal(t, "[1000099000 1 0]", k.give(3, 1, false, 1, true), "it has had what it could")
		require.Contains(t, k.do(scripts.StockReserve, "4 2 1 ", "d", "4", "60000", "", "r"), "[soldout 1 ")
		k.now += 100
		require.Equal(t, "[1000199000 1 0]", k.give(5, 1, false, 1, true), "the moment is over")
		require.Contains(t, k.do(scripts.StockReserve, "", "e", "1", "60000", "", "r"), "[soldout 0 ")
		require.Contains(t, k.do(scripts.StockTake, "4 3 1 "), "1")
		require.Equal(t, "[1000199001 1 0]", k.give(6, 1, false, 1, true), "an order for one collects nothing")
	})
}

// Units that come with an order are its own before anybody else's.
func TestStockReserve_takesInWhatComesWithIt(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newTimed(t, b, name(t), 1, 0, true)
		require.Contains(t, k.do(scripts.StockReserve, "1 5 2 2 7 1 ", "a", "4", "60000", "", "r"), "[1000000]")
		require.Equal(t, "[0 4 - 3 - 2]", k.counts())
		require.Contains(t, k.do(scripts.StockReserve, "1 5 2 2 7 1 ", "a", "4", "60000", "", "r"), "[ok 0 ", "a repeat")
		require.Contains(t, k.do(scripts.StockReserve, "1 4 2 2 7 1 ", "b", "1", "60000", "", "r"), "[soldout 0 ", "late copies")
		require.Contains(t, k.do(scripts.StockReserve, "1 6 2 2 7 1 ", "c", "3", "60000", "", "r"), "[soldout 2 ", "they are here even so")
		require.Equal(t, "[2 4 - 5 - 3]", k.counts())
	})
}

// Whatever puts units on sale is counted, since that is how others know that they
// have seen all buckets at one moment; and nothing else is.
func TestStock_countsWhatPutsUnitsOnSale(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newTimed(t, b, name(t), 9, 0, true)
		reserve := func(id, mode string, window int) string {
			return k.do(scripts.StockReserve, "", id, "1", fmt.Sprint(window), "", mode)
		}
		for _, step := range []struct {
			name string
			more int // than before
			do   func() string
		}{
			{"reserve", 0, func() string { return reserve("a", "r", 60_000) }},
			{"cancel", 1, func() string { return k.do(scripts.StockCancel, "a", "1") }},
			{"cancel again", 0, func() string { return k.do(scripts.StockCancel, "a", "1") }},
			{"reserve", 0, func() string { return reserve("b", "r", 60_000) }},
			{"confirm", 0, func() string { return k.do(scripts.StockConfirm, "b") }},
			{"refund", 1, func() string { return k.do(scripts.StockRefund, "b", "f", "1") }},
			{"refund again", 0, func() string { return k.do(scripts.StockRefund, "b", "f", "1") }},
			{"tentative", 0, func() string { return reserve("c", "t", 60_000) }},
			{"given back", 1, func() string { return k.do(scripts.StockSettle, "c", "0") }},
			{"tentative", 0, func() string { return reserve("d", "t", 60_000) }},
			{"decided", 0, func() string { return k.do(scripts.StockSettle, "d", "60000") }},
			{"short", 0, func() string { return reserve("e", "r", 5) }},
			{"short", 0, func() string { return reserve("f", "t", 5) }},
			{"over", 2, func() string { k.now += 5; return k.do(scripts.StockSweep, "10", "0") }},
			{"over and found by its own id", 1, func() string { reserve("g", "r", 5); k.now += 5; return k.do(scripts.StockConfirm, "g") }},
			{"delivery", 1, func() string { return k.do(scripts.StockAdd, "d", "2") }},
			{"delivery again", 0, func() string { return k.do(scripts.StockAdd, "d", "2") }},
			{"take", 1, func() string { return k.do(scripts.StockTake, "1 1 1 ") }},
			{"take again", 0, func() string { return k.do(scripts.StockTake, "1 1 1 ") }},
			{"give", 0, func() string { return k.give(1, 1, false, 0, false) }},
		} {
			var before, after int
			read := func(n *int) {
				_, err := fmt.Sscan(text(k.raw(t, "HGET", k.keys[0], "raised")), n)
				require.NoError(t, err)
			}
			read(&before)
			got := step.do()
			read(&after)
			require.Equal(t, step.more, after-before, "%s: %s", step.name, got)
		}
	})
}

func TestStockView_readsABucket(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newTimed(t, b, name(t), 20, 0, true)
		k.do(scripts.StockReserve, "5 1 2 ", "a", "1", "10", "", "r")
		k.do(scripts.StockReserve, "", "b", "2", "60000", "", "r")
		k.do(scripts.StockReserve, "", "c", "3", "60000", "", "t")
		k.do(scripts.StockConfirm, "b")
		k.do(scripts.StockCancel, "early", "60000")
		k.give(1, 4, false, 0, false)
		k.give(2, 1, false, 0, false)
		k.now += 10
		before := k.holds()
		got := k.view("a", "b", "c", "early", "none")
		require.Equal(t, before, k.holds(), "it only reads")
		parts := strings.SplitAfterN(strings.Trim(got, "[]"), "] [", 3)
		require.Len(t, parts, 3)
		require.Equal(t, "11 1 3 2 20 2 1 0 4 5 2 1 59990", strings.TrimSuffix(parts[0], "] ["))
		require.ElementsMatch(t, []string{"1", "1000000000", "4", "2", "1000000001", "1"}, strings.Fields(strings.TrimSuffix(parts[1], "] [")))
		require.Equal(t, "1 1 1 1 0", parts[2])
	})
}

func TestStockResize_isNotedForThatStockOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		key := []string{name(t)}
		resize := func(id, buckets string) string {
			return text(scripts.StockResize.Exec(t.Context(), b.client, key, []string{id, buckets}))
		}
		live := func() string {
			list, err := scripts.StockInit.Exec(t.Context(), b.client, key, []string{"", "-1", "0", "0", "0"}).AsStrSlice()
			require.NoError(t, err)
			return list[len(list)-1]
		}
		require.Equal(t, "0", resize("id", "2"))
		require.Empty(t, b.state(t, key[0]))
		require.NoError(t, scripts.StockInit.Exec(t.Context(), b.client, key, []string{"id", "9", "8", "0", "60000"}).Error())
		require.Equal(t, "8", live(), "all of them at first")
		require.Equal(t, "1", resize("id", "2"))
		require.Equal(t, "2", live())
		require.Equal(t, "0", resize("other", "3"))
		require.Equal(t, "2", live())
	})
}
