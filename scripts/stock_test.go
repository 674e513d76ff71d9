package scripts_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/scripts"
)

// A bucket is the keys of one, for one run of a test.
type bucket struct {
	*backend
	t    *testing.T
	keys []string // units, orders, ends, forget, expired, buyers
}

func newBucket(t *testing.T, b *backend, units, limit int) *bucket {
	t.Helper()
	k := &bucket{backend: b, t: t}
	for _, part := range []string{"units", "orders", "ends", "forget", "expired", "buyers"} {
		k.keys = append(k.keys, name(t)+":"+part)
	}
	require.Equal(t, "1", text(scripts.StockBucket.Exec(t.Context(), b.client, k.keys[:1],
		[]string{"id", fmt.Sprint(units), fmt.Sprint(limit), fmt.Sprint(b.micros(t)/1000 + 60_000)})))
	return k
}

// run runs a script of the bucket; ARGV begins with the usual four.
func (k *bucket) run(s *scripts.Script, args ...string) string {
	k.t.Helper()
	head := []string{"id", name(k.t) + ":channel", "PUBLISH", "600000"}
	if s == scripts.StockReserve {
		head = append(head, "") // nothing comes from other buckets
	}
	got := text(s.Exec(k.t.Context(), k.client, k.keys, append(head, args...)))
	if s != scripts.StockReserve {
		return got
	}
	if m := took.FindStringSubmatch(got); m != nil {
		return "[ok " + strings.Trim(text(k.raw(k.t, "HGET", k.keys[0], "free")), " ") + " ]"
	}
	return answered.ReplaceAllString(got, "$1")
}

// The replies of a reservation: when it got its units, or an answer.
var (
	took     = regexp.MustCompile(`^\[(\d+)\]$`)
	answered = regexp.MustCompile(`^\[(\[.*\])\]$`)
)

func (k *bucket) units(want string) {
	k.t.Helper()
	got := text(k.raw(k.t, "HMGET", k.keys[0], "free", "reserved", "tentative", "sold", "added"))
	require.Equal(k.t, want, got, "free, reserved, tentative, sold, added")
}

func TestStock_ofAnotherStockNothingIsTouched(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newBucket(t, b, 10, 0)
		require.True(t, strings.HasPrefix(k.run(scripts.StockReserve, "a", "1", "60000", "", "r"), "[ok 9 "))
		before := b.state(t, k.keys[0]) + b.state(t, k.keys[1])
		for _, s := range variables {
			if !strings.HasPrefix(s.Name(), "stock_") || strings.Contains("stock_init stock_bucket stock_open stock_resize", s.Name()) {
				continue
			}
			for what, keys := range map[string][]string{"another": k.keys, "missing": {"x1", "x2", "x3", "x4", "x5", "x6"}} {
				got := text(s.Exec(t.Context(), b.client, keys, []string{"other", "c", "PUBLISH", "1", "a", "1", "1", "", "r"}))
				require.Contains(t, got, "NOSTOCK", "%s, %s", s.Name(), what)
			}
		}
		require.Equal(t, before, b.state(t, k.keys[0])+b.state(t, k.keys[1]))
		require.Equal(t, "0", text(b.raw(t, "EXISTS", "x1", "x2", "x3", "x4", "x5", "x6")))
	})
}

func TestStockBucket_isMadeOnceAndNotTooLate(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newBucket(t, b, 10, 2)
		make := func(id, units string, until int64) string {
			return text(scripts.StockBucket.Exec(t.Context(), b.client, k.keys[:1], []string{id, units, "0", fmt.Sprint(until)}))
		}
		now := b.micros(t) / 1000
		k.run(scripts.StockReserve, "a", "1", "60000", "ann", "r")
		require.Equal(t, "1", make("id", "99", now+60_000))
		k.units("[9 1 0 0 10]")
		require.Equal(t, "-1", make("other", "99", now+60_000))
		k.units("[9 1 0 0 10]")
		b.do(t, nil, "DEL "+k.keys[0]) // lost, with all that was sold
		require.Equal(t, "0", make("id", "10", now-1000), "a copy that comes late")
		require.Empty(t, b.state(t, k.keys[0]))
	})
}

func TestStockInit_decidesOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		key := []string{name(t)}
		init := func(args ...string) []string {
			list, err := scripts.StockInit.Exec(t.Context(), b.client, key, args).AsStrSlice()
			require.NoError(t, err)
			return list
		}
		require.Empty(t, init("", "-1", "0", "0", "0"), "to ask makes nothing")
		require.Empty(t, b.state(t, key[0]))
		first := init("id", "100", "1", "2", "60000")
		require.Equal(t, []string{"id", "100", "1", "2", "initialising"}, first[:5])
		require.Equal(t, first[:5], init("other", "7", "8", "9", "60000")[:5])
		require.Equal(t, "0", text(scripts.StockOpen.Exec(t.Context(), b.client, key, []string{"other"})))
		require.Equal(t, "1", text(scripts.StockOpen.Exec(t.Context(), b.client, key, []string{"id"})))
		open := init("other", "7", "8", "9", "60000")
		require.Equal(t, []string{"id", "100", "1", "2", "open"}, open[:5])
		require.Equal(t, open, init("", "-1", "0", "0", "0"))
	})
}

func TestStockReserve_aBatchOfExpiredOrdersIsBounded(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newBucket(t, b, 250, 0)
		for i := range 250 {
			require.Contains(t, k.run(scripts.StockReserve, fmt.Sprint(i), "1", "1", "", "r"), "[ok ")
		}
		time.Sleep(5 * time.Millisecond)
		words := ""
		for range 4 {
			words += strings.Fields(k.run(scripts.StockReserve, "all", "250", "60000", "", "r"))[0]
		}
		require.Equal(t, "[again[again[ok[ok", words, "a hundred at a time")
		k.units("[0 250 0 0 250]")
	})
}

func TestStock_aCopyThatComesWhenAllIsForgottenIsANewCall(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newBucket(t, b, 10, 0)
		k.run(scripts.StockReserve, "a", "1", "60000", "", "r")
		require.Contains(t, k.run(scripts.StockCancel, "a", "600000"), "[ok ")
		require.Contains(t, k.run(scripts.StockReserve, "a", "1", "60000", "", "r"), "[cancelled ", "a late copy")
		k.units("[10 0 0 0 10]")
		b.do(t, nil, "ZADD "+k.keys[3]+" 1 o:a") // a week later
		require.Contains(t, k.run(scripts.StockReserve, "a", "1", "60000", "", "r"), "[ok 9 ")
		for _, late := range []struct {
			script *scripts.Script
			args   []string
		}{
			{scripts.StockConfirm, []string{"b"}},
			{scripts.StockExtend, []string{"b", "1000"}},
			{scripts.StockSettle, []string{"b", "1000"}},
			{scripts.StockSettle, []string{"b", "0"}},
			{scripts.StockRefund, []string{"b", "f", "1"}},
		} {
			require.Contains(t, k.run(late.script, late.args...), "[unknown ", late.script.Name())
		}
		k.units("[9 1 0 0 10]")
	})
}

// Largest numbers are exact.
func TestStock_countsLargeNumbers(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newBucket(t, b, 999_999_999_999, 0)
		require.Contains(t, k.run(scripts.StockReserve, "a", "1000000000", "315360000000", "", "r"), "[ok 998999999999 ")
		require.Contains(t, k.run(scripts.StockConfirm, "a"), "s 1000000000 0")
		require.Contains(t, k.run(scripts.StockAdd, "d", "1000000000"), "[ok 1000000000]")
		k.units("[999999999999 0 0 1000000000 1000999999999]")
	})
}

// Ids and buyers may be any text.
func TestStock_idsAreAnyText(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newBucket(t, b, 100, 9)
		for i, id := range []string{" ", "o:a", "a b c", "größe\n", "\x00\xff", "%d", "x=y;z"} {
			require.Contains(t, k.run(scripts.StockReserve, id, "1", "60000", id, "r"), "[ok ", "%q", id)
			require.Contains(t, k.run(scripts.StockReserve, id, "1", "60000", id, "r"), " 1]", "%q is replayed", id)
			require.Contains(t, k.run(scripts.StockConfirm, id), "[ok ", "%q", id)
			require.Contains(t, k.run(scripts.StockRefund, id, id, "1"), "[ok ", "%q", id)
			k.units("[100 0 0 0 100]")
			require.EqualValues(t, fmt.Sprint(2*(i+1)), text(b.raw(t, "HLEN", k.keys[1])))
		}
	})
}

// A refund that has the id of an order is forgotten without it.
func TestStock_whatIsForgottenIsThatAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, b *backend) {
		k := newBucket(t, b, 10, 0)
		k.run(scripts.StockReserve, "same", "1", "1", "", "r")
		k.run(scripts.StockReserve, "sold", "1", "60000", "", "r")
		k.run(scripts.StockConfirm, "sold")
		k.run(scripts.StockRefund, "sold", "same", "1")
		k.run(scripts.StockAdd, "same", "1")
		time.Sleep(5 * time.Millisecond)
		require.Contains(t, k.run(scripts.StockSweep, "100", "10"), "[1 0 [same 1 ")
		b.do(t, nil, "ZADD "+k.keys[3]+" 1 f:4:same:sold 1 a:same")
		require.Contains(t, k.run(scripts.StockSweep, "100", "10"), "[0 2 [same 1 ", "it is still listed")
		require.Equal(t, "2", text(b.raw(t, "HLEN", k.keys[1])))
	})
}
