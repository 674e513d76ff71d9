package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/segmented"
)

// bucketKeys are the keys of one bucket that are there.
func bucketKeys(t testing.TB, c *redistest.Cluster, stock string, bucket int) []string {
	t.Helper()
	return c.Keys(t, fmt.Sprintf("holdfast_stock*:{%s:%d}", stock, bucket))
}

// bucketsOn are the buckets of a stock by the node that they lie on.
func bucketsOn(c *redistest.Cluster, stock string, buckets int) map[*redistest.Server][]int {
	on := map[*redistest.Server][]int{}
	for i := range buckets {
		node := c.Primary(fmt.Sprintf("{%s:%d}", stock, i))
		on[node] = append(on[node], i)
	}
	return on
}

// What happens in a cluster that nobody breaks.
func TestStockCluster(t *testing.T) {
	c := redistest.RunCluster(t)

	t.Run("keys of a bucket share a slot and buckets do not", func(t *testing.T) {
		for _, name := range []string{"shoe", "tie", "a:b", "42"} {
			s := openStock(t, sessionOn(t, c.Client(t)), name, segmented.StockOptions{Buckets: 8, Limit: 9})
			require.NoError(t, s.Init(t.Context(), 80))
			for i := range 40 {
				buyer := fmt.Sprint("b", i)
				order := segmented.Order{ID: segmented.OrderID(buyer, "1"), Buyer: buyer, Qty: 1, Window: []time.Duration{time.Hour, time.Millisecond}[i%2]}
				_, err := s.Reserve(t.Context(), order)
				require.NoError(t, err)
				if i%4 == 0 {
					_, err = s.Confirm(t.Context(), order.ID)
					require.NoError(t, err)
				}
			}
			_, err := s.Sweep(t.Context())
			require.NoError(t, err)
			slots := map[uint16]bool{}
			most := 0
			for i := range 8 {
				keys := bucketKeys(t, c, name, i)
				most = max(most, len(keys))
				require.NotEmpty(t, keys)
				for _, k := range keys {
					require.Equal(t, c.Slot(keys[0]), c.Slot(k), "%q", keys)
					require.Equal(t, "-1", c.Do(t, k, "PTTL", k), "%s: a stock does not run out of time", k)
				}
				slots[c.Slot(keys[0])] = true
			}
			require.GreaterOrEqual(t, len(slots), 6, name)
			require.Equal(t, 6, most, "all sorts of keys were seen")
		}
	})

	t.Run("by default there are so many buckets that each primary has its part", func(t *testing.T) {
		s := openStock(t, sessionOn(t, c.Client(t)), "default")
		require.NoError(t, s.Init(t.Context(), 640))
		v, err := s.View(t.Context())
		require.NoError(t, err)
		require.Len(t, v.Buckets, 64)
		on := bucketsOn(c, "default", 64)
		require.Len(t, on, 3)
		for node, buckets := range on {
			t.Logf("%s has %d of 64 buckets", node.Addr(), len(buckets))
			require.GreaterOrEqual(t, len(buckets), 10)
		}
	})

	t.Run("no call crosses slots", func(t *testing.T) {
		hf := sessionOn(t, c.Client(t), holdfast.SessionOptions{Prefix: "p:"})
		s := openStock(t, hf, "crossing", segmented.StockOptions{Limit: 30, Buckets: 8})
		other := openStock(t, hf, "other", segmented.StockOptions{Buckets: 16})
		ctx := t.Context()
		require.NoError(t, s.Init(ctx, 40))
		require.NoError(t, other.Init(ctx, 40))
		everyCall(t, s, other)
		slots := map[uint16]bool{}
		for _, k := range c.Keys(t, "holdfast_stock_units:{p:crossing:*") {
			slots[c.Slot(k)] = true
		}
		require.Len(t, slots, 8)
	})

	t.Run("orders are at home on every node and any process knows where", func(t *testing.T) {
		one := openStock(t, sessionOn(t, c.Client(t)), "home")
		two := openStock(t, sessionOn(t, c.Client(t)), "home")
		require.NoError(t, one.Init(t.Context(), 256))
		for i := range 128 {
			id := fmt.Sprint("o", i)
			require.False(t, reserve(t, one, id, 1).Replayed)
			require.True(t, reserve(t, two, id, 1).Replayed)
			_, err := two.Confirm(t.Context(), id)
			require.NoError(t, err)
		}
		v, err := one.View(t.Context())
		require.NoError(t, err)
		on := bucketsOn(c, "home", 64)
		for node, buckets := range on {
			var sold int64
			for _, i := range buckets {
				sold += v.Buckets[i].Sold
			}
			require.Positive(t, sold, node.Addr())
		}
		// To the last unit, by buyers whose orders are all at home in one bucket.
		for _, id := range idsOf(11, 64, 128) {
			sell(t, two, "x"+id, 1)
		}
		_, err = one.Reserve(t.Context(), segmented.Order{ID: "late", Qty: 1})
		require.ErrorIs(t, err, segmented.ErrSoldOut)
		requireSoldOut(t, one, 256)
	})

	t.Run("those who remember that it is sold out hear of a refund", func(t *testing.T) {
		var sessions []*segmented.Stock
		for range 3 {
			sessions = append(sessions, openStock(t, sessionOn(t, c.Client(t)), "refund", segmented.StockOptions{Buckets: 12}))
		}
		require.NoError(t, sessions[0].Init(t.Context(), 12))
		told := make(chan int64, 100)
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan error, 1)
		go func() { watched <- sessions[2].Watch(ctx, func(free int64) { told <- free }) }()
		require.EqualValues(t, 12, <-told)
		for i := range 12 {
			sell(t, sessions[0], fmt.Sprint(i), 1)
		}
		require.Zero(t, <-told)
		for i, s := range sessions {
			_, err := s.Reserve(t.Context(), segmented.Order{ID: fmt.Sprint("late", i), Qty: 1})
			require.ErrorIs(t, err, segmented.ErrSoldOut)
		}
		_, err := sessions[0].Refund(t.Context(), segmented.Refund{ID: "f", Order: "7", Qty: 1})
		require.NoError(t, err)
		require.EqualValues(t, 1, <-told)
		sell(t, sessions[1], "again", 1)
		require.Zero(t, <-told)
		cancel()
		require.ErrorIs(t, <-watched, context.Canceled)
		requireSoldOut(t, sessions[2], 12)
	})
}

// everyCall makes all calls of a stock, which has a limit of 30 and 40 units, and of
// another one without a limit, with 40.
func everyCall(t *testing.T, s, other *segmented.Stock) {
	ctx := t.Context()
	told := make(chan int64, 1000)
	watching, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- s.Watch(watching, func(free int64) { told <- free }) }()
	require.EqualValues(t, 40, <-told)
	order := func(buyer, id string, qty int64) segmented.Order {
		return segmented.Order{ID: segmented.OrderID(buyer, id), Buyer: buyer, Qty: qty}
	}
	_, err := s.Reserve(ctx, order("ann", "1", 31))
	require.ErrorIs(t, err, segmented.ErrLimit)
	_, err = s.Reserve(ctx, order("ann", "1", 30)) // from all buckets
	require.NoError(t, err)
	_, err = s.Reserve(ctx, order("bob", "1", 11))
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	_, err = s.Reserve(ctx, order("bob", "2", 10))
	require.NoError(t, err)
	require.Zero(t, <-told)
	_, err = s.Reserve(ctx, order("cid", "1", 1))
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	_, err = s.Extend(ctx, "ann/1", time.Hour)
	require.NoError(t, err)
	_, err = s.Confirm(ctx, "ann/1")
	require.NoError(t, err)
	_, err = s.Cancel(ctx, "bob/2")
	require.NoError(t, err)
	_, err = s.Cancel(ctx, "never/came")
	require.ErrorIs(t, err, segmented.ErrUnknownOrder)
	_, err = s.Refund(ctx, segmented.Refund{ID: "f", Order: "ann/1", Qty: 3})
	require.NoError(t, err)
	_, err = s.Get(ctx, "ann/1")
	require.NoError(t, err)
	require.NoError(t, s.Add(ctx, segmented.Delivery{ID: "d", Qty: 17}))
	for i := range 8 {
		o := order(fmt.Sprint("over", i), "1", 1)
		o.Window = time.Millisecond
		_, err = s.Reserve(ctx, o)
		require.NoError(t, err)
	}
	time.Sleep(5 * time.Millisecond)
	_, err = s.Sweep(ctx)
	require.NoError(t, err)
	list, err := s.Expired(ctx, 100)
	require.NoError(t, err)
	require.Len(t, list, 8)
	for _, r := range list {
		require.NoError(t, s.Acknowledge(ctx, r.Order.ID, "nobody/1"))
	}
	v, err := s.View(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Resize(ctx, 1))
	require.NoError(t, s.Resize(ctx, len(v.Buckets)))
	n := 0
	for _, err := range s.Orders(ctx) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 10, n)
	for i, confirm := range []bool{true, false} {
		basket := segmented.Basket{ID: fmt.Sprint("dan/", i), Buyer: "dan", Lines: []segmented.Line{{Stock: s, Qty: 3}, {Stock: other, Qty: 20}}}
		_, err = basket.Reserve(ctx)
		require.NoError(t, err)
		if confirm {
			_, err = basket.Confirm(ctx)
		} else {
			err = basket.Cancel(ctx)
		}
		require.NoError(t, err)
	}
	basket := segmented.Basket{ID: "eve/1", Buyer: "eve", Lines: []segmented.Line{{Stock: s, Qty: 3}, {Stock: other, Qty: 21}}}
	_, err = basket.Reserve(ctx)
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	r, err := s.Reconcile(ctx, 30)
	require.NoError(t, err)
	require.Zero(t, r.Drift)
	requireUnits(t, s, 27, 0, 30)
	requireUnits(t, other, 20, 0, 20)
	cancel()
	require.ErrorIs(t, <-watched, context.Canceled)
	require.ErrorIs(t, s.Sweeper(watching, time.Second), context.Canceled)
}

// Orders and buyers spread evenly over buckets, whatever ids look like.
func TestHash_noBucketHasMuchMoreThanTheOthers(t *testing.T) {
	const n, buckets = 64_000, 64
	random := rand.New(rand.NewPCG(15, 4))
	for name, id := range map[string]func(i int) string{
		"in order":          func(i int) string { return fmt.Sprint(i) },
		"even":              func(i int) string { return fmt.Sprint(2 * i) },
		"by 64":             func(i int) string { return fmt.Sprint(64 * i) },
		"padded":            func(i int) string { return fmt.Sprintf("order-%012d", i) },
		"random":            func(int) string { return fmt.Sprintf("%016x", random.Uint64()) },
		"mail addresses":    func(i int) string { return fmt.Sprintf("customer%d@example.com", i) },
		"buyers with a /":   func(i int) string { return fmt.Sprintf("shop/%d", i) },
		"days and numbers":  func(i int) string { return fmt.Sprintf("2026-%02d-%02d/%05d", 1+i%12, 1+i%28, i) },
		"one byte at a end": func(i int) string { return strings.Repeat("x", i/256) + string(rune(i%256)) },
	} {
		var counts [buckets]int
		for i := range n {
			counts[segmented.Hash(id(i))%buckets]++
		}
		busiest := 0
		for _, c := range counts {
			busiest = max(busiest, c)
		}
		t.Logf("%s: the busiest bucket has %.3f times the mean", name, float64(busiest)*buckets/n)
		require.LessOrEqual(t, float64(busiest)*buckets/n, 1.3, name)
	}
}

// shoppers buy from several sessions until all is sold, and note what they have. An
// order whose outcome is not known is asked for again.
type shoppers struct {
	wg    sync.WaitGroup
	sold  atomic.Int64
	again atomic.Int64 // calls that were made again
}

func (b *shoppers) start(t *testing.T, stocks []*segmented.Stock, each int) {
	for n, s := range stocks {
		for m := range each {
			b.wg.Go(func() {
				for i := 0; ; i++ {
					id := fmt.Sprint(n, "-", m, "-", i)
					err := b.until(t, func() error {
						_, err := s.Reserve(context.Background(), segmented.Order{ID: id, Qty: 1, Window: time.Hour})
						return err
					})
					if err != nil {
						if !errors.Is(err, segmented.ErrSoldOut) {
							t.Error(err)
						}
						return
					}
					if err := b.until(t, func() error { _, err := s.Confirm(context.Background(), id); return err }); err != nil {
						t.Error(err)
						return
					}
					b.sold.Add(1)
				}
			})
		}
	}
}

func (b *shoppers) until(t *testing.T, call func() error) error {
	for deadline := time.Now().Add(60 * time.Second); ; b.again.Add(1) {
		err := call()
		if !errors.Is(err, holdfast.ErrUnknown) && !errors.Is(err, holdfast.ErrUnavailable) {
			return err
		}
		if time.Now().After(deadline) {
			t.Error("no answer in a minute")
			return err
		}
	}
}

// Slots of buckets move, key by key, to another node and back, while all is sold. A
// bucket that is half here and half there does nothing, and those who need it wait
// or are told that its outcome is not known.
func TestFailover_allIsSoldWhileSlotsOfBucketsMove(t *testing.T) {
	t.Parallel() // it waits for its cluster most of the time
	c := redistest.RunCluster(t, redistest.ClusterOptions{})
	const buckets, units = 6, 3000
	o := segmented.StockOptions{Buckets: buckets}
	var stocks []*segmented.Stock
	for _, timeout := range []time.Duration{15 * time.Second, 5 * time.Second, 150 * time.Millisecond} {
		stocks = append(stocks, openStock(t, sessionOn(t, c.Client(t), holdfast.SessionOptions{Timeout: timeout}), "shoe", o))
	}
	require.NoError(t, stocks[0].Init(t.Context(), units))
	var b shoppers
	b.start(t, stocks, 3)
	for i := range 2 {
		slot := c.Slot(fmt.Sprintf("{shoe:%d}", i))
		home := c.Owner(slot)
		for _, to := range c.Servers() {
			if to == home {
				continue
			}
			for _, to := range []*redistest.Server{to, home} {
				move := c.BeginMove(t, slot, to)
				for _, k := range bucketKeys(t, c, "shoe", i) {
					time.Sleep(20 * time.Millisecond)
					move.MoveKeys(k)
				}
				time.Sleep(20 * time.Millisecond)
				move.Finish()
			}
			break
		}
		v, err := stocks[0].View(t.Context())
		require.NoError(t, err)
		require.Zero(t, v.Unaccounted(), "%+v", v)
	}
	t.Logf("%d sold while slots moved, %d calls were made again", b.sold.Load(), b.again.Load())
	b.wg.Wait()
	require.EqualValues(t, units, b.sold.Load())
	requireSoldOut(t, stocks[0], units)
}

// A primary dies while everybody buys, and its replica has all that it answered.
func TestFailover_ofAPrimaryWhoseReplicaHasAllLosesNoUnit(t *testing.T) {
	t.Parallel() // it waits for its cluster most of the time
	c := redistest.RunCluster(t)
	const buckets, units = 6, 3000
	o := segmented.StockOptions{Buckets: buckets}
	var stocks []*segmented.Stock
	for _, timeout := range []time.Duration{15 * time.Second, 300 * time.Millisecond} {
		stocks = append(stocks, openStock(t, sessionOn(t, c.Client(t), holdfast.SessionOptions{Timeout: timeout}), "shoe", o))
	}
	require.NoError(t, stocks[0].Init(t.Context(), units))
	var b shoppers
	b.start(t, stocks, 4)
	redistest.Eventually(t, 30*time.Second, "some are sold", func() bool { return b.sold.Load() > 100 })
	slot := c.Slot("{shoe:0}")
	primary := c.Owner(slot)
	// It writes nothing from here on, so that its replica can have it all.
	primary.Do(t, "CLIENT", "PAUSE", "10000", "WRITE")
	primary.WaitInStep(t, c.Replicas(slot)...)
	before := b.sold.Load()
	c.KillPrimary(t, slot)
	t.Logf("%d were sold before, %d meanwhile, %d calls were made again", before, b.sold.Load()-before, b.again.Load())
	b.wg.Wait()
	require.EqualValues(t, units, b.sold.Load())
	requireSoldOut(t, stocks[0], units)
	r, err := stocks[1].Reconcile(t.Context(), b.sold.Load())
	require.NoError(t, err)
	require.Zero(t, r.Drift)
}

// deafen has the replicas of a slot's primary hear of nothing from here on: they may
// connect to it no more.
func deafen(t testing.TB, c *redistest.Cluster, slot uint16) {
	t.Helper()
	primary, replicas := c.Owner(slot), c.Replicas(slot)
	primary.WaitInStep(t, replicas...)
	for _, r := range replicas {
		r.Do(t, "CONFIG", "SET", "masteruser", "nobody", "masterauth", "nothing")
	}
	primary.KillClients(t, "replica")
}

// A failover of one node loses the last writes of its buckets, and the others know
// more than they: what was sold there is on sale again, and units that came from
// others are missing, or were sent to others and are here as well. Nothing puts that
// right, since nobody knows what was lost. What is true then: no call fails for it,
// each bucket is right for itself, Unaccounted says how many units are missing, or
// are there twice if it is negative, and Drift how many sales were forgotten.
func TestFailover_thatLosesWritesOfOneNodeIsShownByViewAndReconcile(t *testing.T) {
	t.Parallel() // it waits for its cluster most of the time
	for _, loser := range []string{"receiver", "sender"} {
		t.Run("of the "+loser, func(t *testing.T) {
			t.Parallel()
			c := redistest.RunCluster(t)
			const buckets = 12
			s := openStock(t, sessionOn(t, c.Client(t)), "shoe", segmented.StockOptions{Buckets: buckets})
			require.NoError(t, s.Init(t.Context(), 12))
			on := bucketsOn(c, "shoe", buckets)
			slot := c.Slot("{shoe:0}")
			// One unit is left, in a bucket of another node than that of the order which gets
			// it.
			from := -1
			for node, list := range on {
				if node != c.Owner(slot) {
					from = list[0]
				}
			}
			to := 0
			if loser == "sender" {
				from, to = to, from
			}
			var books int64
			for i := range buckets {
				if i != from {
					sell(t, s, idsOf(i, buckets, 1)[0], 1)
					books++
				}
			}
			requireUnits(t, s, 1, 0, 11)
			deafen(t, c, slot)
			ids := idsOf(to, buckets, 3)
			sell(t, s, ids[1], 1)
			books++
			requireSoldOut(t, s, 12)
			c.KillPrimary(t, slot)

			var r segmented.Report
			var err error
			redistest.Eventually(t, 30*time.Second, "the new primary answers", func() bool {
				r, err = s.Reconcile(t.Context(), books)
				return err == nil
			})
			t.Logf("%+v", r.Units)
			if loser == "receiver" {
				require.EqualValues(t, 1, r.Unaccounted(), "it left the one bucket, and the other never got it")
				require.EqualValues(t, -1, r.Drift)
				require.Zero(t, r.Free)
				_, err = s.Get(t.Context(), ids[1])
				require.ErrorIs(t, err, segmented.ErrUnknownOrder)
			} else {
				require.EqualValues(t, -1, r.Unaccounted(), "it was sold there, and is still here")
				require.Zero(t, r.Drift)
				require.EqualValues(t, 1, r.Free)
			}
			// Selling goes on, with the units that are there: also on the same way, of whose
			// last use the sender knows nothing.
			if r.Free > 0 {
				sell(t, s, ids[2], 1)
			}
			_, err = s.Reserve(t.Context(), segmented.Order{ID: "late", Qty: 1})
			require.ErrorIs(t, err, segmented.ErrSoldOut)
			// A delivery makes up for what is missing; of what is there twice one is sold
			// twice, and the owner has to buy one back.
			if loser == "receiver" {
				require.NoError(t, s.Add(t.Context(), segmented.Delivery{ID: "found", Qty: 1}))
				sell(t, s, ids[1], 1)
				_, err = s.Reserve(t.Context(), segmented.Order{ID: "later", Qty: 1})
				require.ErrorIs(t, err, segmented.ErrSoldOut)
			}
		})
	}
}
