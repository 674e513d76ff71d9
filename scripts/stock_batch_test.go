package scripts_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/scripts"
)

// at is a script for which it is a certain time: ARGV begins with the seconds and
// the microseconds.
func at(s *scripts.Script) *scripts.Script {
	return scripts.New(s.Name()+"_at", `local real, clock = redis, {table.remove(ARGV, 1), table.remove(ARGV, 1)}
local redis = { error_reply = real.error_reply, pcall = real.pcall, call = function(name, ...)
  if name == 'TIME' then
    return clock
  end
  return real.call(name, ...)
end }
`+s.Text())
}

// A timed bucket is one of a stock with several, or the only one, for which the
// test says what time it is.
type timed struct {
	*bucket
	now int64 // milliseconds
}

func newTimed(t *testing.T, b *backend, name string, units, limit int, several bool) *timed {
	t.Helper()
	k := &timed{bucket: &bucket{backend: b, t: t}, now: 1_000_000}
	for _, part := range []string{"units", "orders", "ends", "forget", "expired", "buyers"} {
		k.keys = append(k.keys, name+":"+part)
	}
	flag := "0"
	if several {
		flag = "1"
	}
	require.Equal(t, "1", k.bare(scripts.StockBucket, k.keys[:1], "id", fmt.Sprint(units), fmt.Sprint(limit), "2000000", flag))
	return k
}

// bare runs a script as it is.
func (k *timed) bare(s *scripts.Script, keys []string, args ...string) string {
	k.t.Helper()
	clock := []string{fmt.Sprint(k.now / 1000), fmt.Sprint(k.now % 1000 * 1000)}
	return text(at(s).Exec(k.t.Context(), k.client, keys, append(clock, args...)))
}

// do runs a script of a bucket.
func (k *timed) do(s *scripts.Script, args ...string) string {
	k.t.Helper()
	return k.bare(s, k.keys, append([]string{"id", "channel", "PUBLISH", "600000"}, args...)...)
}

// holds is all that the bucket has, times included.
func (k *timed) holds() string {
	var all []string
	for i, key := range k.keys {
		if i < 2 || i == 5 {
			all = append(all, k.state(k.t, key))
		} else {
			all = append(all, text(k.raw(k.t, "ZRANGE", key, "0", "-1", "WITHSCORES")))
		}
	}
	return strings.Join(all, "\n")
}

// order is the five arguments of an order.
type order struct {
	id            string
	units, window int
	buyer, mode   string
}

func (o order) args() []string {
	return []string{o.id, fmt.Sprint(o.units), fmt.Sprint(o.window), o.buyer, o.mode}
}

// together reserves orders in one script, and one by one in a twin of the bucket,
// and compares what they are told, and all that is there afterwards.
func together(t *testing.T, k, twin *timed, coming string, orders []order) string {
	t.Helper()
	all := []string{coming}
	var alone []string
	for i, o := range orders {
		all = append(all, o.args()...)
		if i > 0 {
			coming = ""
		}
		got := twin.do(scripts.StockReserve, append([]string{coming}, o.args()...)...)
		alone = append(alone, got[1:len(got)-1])
	}
	want := "[" + strings.Join(alone, " ") + "]"
	require.Equal(t, want, k.do(scripts.StockReserve, all...), "%v", orders)
	require.Equal(t, twin.holds(), k.holds(), "%v", orders)
	return want
}

func twins(t *testing.T, b *backend, units, limit int, several bool) (k, twin *timed) {
	t.Helper()
	return newTimed(t, b, name(t)+":{a}", units, limit, several), newTimed(t, b, name(t)+":{b}", units, limit, several)
}

func TestStockReserve_aBatchIsItsOrdersOneByOne(t *testing.T) {
	r := func(id string, units int) order { return order{id, units, 60_000, "ann", "r"} }
	tentative := func(id string, units int) order { return order{id, units, 60_000, "ann", "t"} }
	for _, c := range []struct {
		name         string
		units, limit int
		several      bool
		before       []order // a second ago
		orders       []order
		want         string // words, or that the order got its units now
	}{
		{"all get what they want", 5, 0, false, nil, []order{r("a", 1), r("b", 2), r("c", 2)}, "now now now"},
		{"the last unit goes to the first", 3, 0, false, nil, []order{r("a", 3), r("b", 1)}, "now soldout"},
		{"a small one fits behind a large one that does not", 3, 0, true, nil, []order{r("a", 2), r("b", 2), r("c", 1)}, "now soldout now"},
		{"one order three times", 9, 0, false, nil, []order{r("a", 2), r("a", 2), r("a", 2)}, "now ok ok"},
		{"one order around a refusal", 9, 0, false, nil, []order{r("a", 2), r("b", 8), r("a", 2)}, "now soldout ok"},
		{"one order with two quantities", 9, 0, false, nil, []order{r("a", 2), r("a", 3), r("a", 2)}, "now conflict ok"},
		{"one order twice, refused first", 1, 0, false, []order{{"z", 1, 1000, "", "r"}}, []order{r("a", 2), r("a", 1)}, "soldout now"},
		{"a buyer has a limit", 9, 3, false, nil, []order{r("a", 2), r("b", 2), r("c", 1)}, "now limit now"},
		{"a basket is waited for", 5, 0, false, nil, []order{tentative("a", 4), r("b", 2)}, "now wait"},
		{"a basket that the batch began with", 5, 0, false, []order{tentative("z", 3)}, []order{tentative("a", 2), r("b", 5), r("c", 6)}, "now wait soldout"},
		{"a basket's order comes again as another", 5, 0, false, nil, []order{tentative("a", 4), r("a", 4), tentative("a", 4)}, "now conflict ok"},
		{"what is over comes back in the middle", 3, 0, false, []order{{"z", 2, 1000, "", "r"}}, []order{r("a", 1), r("b", 2), r("c", 1)}, "now now soldout"},
		{"an order whose own time is over", 3, 0, false, []order{{"z", 2, 1000, "ann", "r"}}, []order{r("a", 1), r("z", 2), r("b", 3), r("c", 2)}, "now expired soldout now"},
		{"a tentative order whose own time is over", 3, 0, false, []order{{"z", 2, 1000, "ann", "t"}}, []order{r("a", 1), r("z", 2), r("b", 1)}, "now now soldout"},
		{"a large order that is refused, and then satisfied", 3, 0, true, nil, []order{r("a", 4), r("b", 1), r("c", 3), r("d", 1)}, "soldout now soldout now"},
	} {
		t.Run(c.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, b *backend) {
				k, twin := twins(t, b, c.units, c.limit, c.several)
				for _, o := range c.before {
					together(t, k, twin, "", []order{o})
				}
				k.now, twin.now = k.now+1000, twin.now+1000
				got := together(t, k, twin, "", c.orders)
				var words []string
				for _, w := range strings.Split(strings.ReplaceAll(strings.Trim(flat(got), "[]"), fmt.Sprint(k.now), "now"), " [") {
					words = append(words, strings.Fields(w)...)
				}
				require.Equal(t, c.want, strings.Join(words, " "))
			})
		})
	}
}

// flat leaves of each list its first word.
func flat(reply string) string {
	var b strings.Builder
	depth, first := 0, false
	for _, r := range reply {
		switch {
		case r == '[':
			if depth++; depth == 1 {
				b.WriteRune(r)
			}
			first = true
		case r == ']':
			if depth--; depth == 0 {
				b.WriteRune(r)
			}
		case r == ' ' && depth > 1:
			first = false
		case depth == 1 || first:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Batches at random, in between what else happens to a bucket.
func TestStockReserve_anyBatchIsItsOrdersOneByOne(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		seen := map[string]int{}
		for seed := range uint64(60) {
			random := rand.New(rand.NewPCG(seed, 1))
			one := func(of ...string) string { return of[random.IntN(len(of))] }
			limit := random.IntN(2) * 4
			units, several := random.IntN(12), seed%2 == 1
			k := newTimed(t, b, fmt.Sprintf("%s:%d:{a}", name(t), seed), units, limit, several)
			twin := newTimed(t, b, fmt.Sprintf("%s:%d:{b}", name(t), seed), units, limit, several)
			number := 0
			for range 12 {
				passed := []int64{0, 0, 1, 40, 120}[random.IntN(5)]
				k.now, twin.now = k.now+passed, twin.now+passed
				both := func(s *scripts.Script, args ...string) {
					require.Equal(t, twin.do(s, args...), k.do(s, args...))
				}
				switch id := one("a", "b", "c", "d", "e"); random.IntN(8) {
				case 0:
					both(scripts.StockConfirm, id)
				case 1:
					both(scripts.StockCancel, id, "600000")
				case 2:
					both(scripts.StockSettle, id, one("0", "50"))
				case 3:
					both(scripts.StockExtend, id, "50")
				case 4:
					if several {
						both(scripts.StockGive, one("1", "2"), one("1", "3"), one("0", "1"), "1", one("0", "1"))
					}
				}
				var orders []order
				for range 1 + random.IntN(6) {
					orders = append(orders, order{
						one("a", "b", "c", "d", "e", "f", "g"), 1 + random.IntN(3), []int{1, 50, 60_000}[random.IntN(3)],
						one("ann", "bob"), one("r", "r", "t"),
					})
				}
				coming := ""
				if several && random.IntN(4) == 0 {
					number++
					coming = fmt.Sprintf("%s %d %s ", one("1", "2"), number, one("1", "4"))
				}
				for _, w := range strings.FieldsFunc(flat(together(t, k, twin, coming, orders)), func(r rune) bool { return strings.ContainsRune("[] ", r) }) {
					if w[0] >= '0' && w[0] <= '9' {
						w = "fresh"
					}
					seen[w]++
				}
			}
			b.raw(t, slices.Concat([]string{"DEL"}, k.keys, twin.keys)...)
		}
		t.Logf("%v", seen)
		for _, w := range []string{"fresh", "ok", "soldout", "limit", "wait", "conflict", "expired", "cancelled"} {
			require.Greater(t, seen[w], 20, w)
		}
	})
}
