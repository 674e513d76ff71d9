package pubsub_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/pubsub"
)

func TestFamilyNeedsNoServer(t *testing.T) {
	s := redistest.Run(t)
	c := s.Client(t)
	before := s.Calls(t)
	for family, want := range map[pubsub.Family]pubsub.Family{
		pubsub.Auto:    pubsub.Publish, // not a cluster
		pubsub.Publish: pubsub.Publish,
		pubsub.Sharded: pubsub.Sharded,
		pubsub.Both:    pubsub.Both,
	} {
		h := newHub(t, c, pubsub.Options{Family: family})
		require.Equal(t, want, h.Publisher(t.Context()), family.String())
		require.Equal(t, want != pubsub.Publish, h.Sharded())
	}
	require.Empty(t, s.Calls(t).Since(before))
}

func TestBothOnOneServer(t *testing.T) {
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t)
		h := newHub(t, s.Client(t, proto), pubsub.Options{Family: pubsub.Both, Poll: noPoll, Linger: -1})
		e := newEar()
		stop := h.Subscribe("c", e.notify)
		e.untilLooks(t, 2) // one for each
		s.Do(t, "PUBLISH", "c", "m")
		e.untilMessages(t, 1)
		s.Do(t, "SPUBLISH", "c", "m")
		e.untilMessages(t, 2)
		_, ok := h.Join("c", e.notify)
		require.True(t, ok)
		stop()
		require.Equal(t, []string{"c", "c"}, s.Channels(t))
	})
}

func TestAutoInACluster(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		s := redistest.Run(t, redistest.Options{Cluster: true})
		c := s.Client(t, proto)
		require.Equal(t, rueidis.ClientModeCluster, c.Mode())
		h := newHub(t, c, pubsub.Options{Poll: noPoll, Linger: -1})
		before := s.Calls(t)
		require.True(t, h.Sharded())
		require.Equal(t, pubsub.Sharded, h.Publisher(t.Context()))
		require.Equal(t, pubsub.Sharded, h.Publisher(t.Context()))
		require.EqualValues(t, 1, s.Calls(t).Since(before).Of("pubsub|shardnumsub"))

		const n = 300
		ears, stops := make([]*ear, n), make([]func(), n)
		for i := range ears {
			ears[i] = newEar()
			stops[i] = h.Subscribe(fmt.Sprint("c", i), ears[i].notify)
		}
		for i, e := range ears {
			e.untilLooks(t, 1)
			s.Do(t, "PUBLISH", fmt.Sprint("c", i), "not heard")
			s.Do(t, "SPUBLISH", fmt.Sprint("c", i), "m")
			e.untilMessages(t, 1)
			_, messages := e.counts()
			require.Equal(t, 1, messages)
		}
		require.Equal(t, 1, strings.Count(s.Do(t, "CLIENT", "LIST", "TYPE", "pubsub"), " name="))
		s.Do(t, "CLIENT", "KILL", "TYPE", "pubsub")
		for _, e := range ears {
			e.untilLooks(t, 2)
		}
		for _, stop := range stops {
			stop()
		}
		redistest.Eventually(t, patience, "unsubscribed", func() bool { return len(s.Channels(t)) == 0 })
		require.EqualValues(t, 1, s.Calls(t).Since(before).Of("pubsub|shardnumsub"))
	})
}

// Subscribing first decides as well.
func TestAutoDecidedBySubscribing(t *testing.T) {
	t.Parallel()
	s := redistest.Run(t, redistest.Options{Cluster: true})
	h := newHub(t, s.Client(t), pubsub.Options{Poll: noPoll})
	e := newEar()
	h.Subscribe("c", e.notify)
	e.untilLooks(t, 1)
	s.Do(t, "SPUBLISH", "c", "m")
	e.untilMessages(t, 1)
	before := s.Calls(t)
	require.Equal(t, pubsub.Sharded, h.Publisher(t.Context()))
	require.Empty(t, s.Calls(t).Since(before))
}

func TestPublishInACluster(t *testing.T) {
	t.Parallel()
	s := redistest.Run(t, redistest.Options{Cluster: true})
	h := newHub(t, s.Client(t), pubsub.Options{Family: pubsub.Publish, Poll: noPoll})
	ears := make([]*ear, 200)
	for i := range ears {
		ears[i] = newEar()
		h.Subscribe(fmt.Sprint("c", i), ears[i].notify)
	}
	for i, e := range ears {
		e.untilLooks(t, 1)
		s.Do(t, "SPUBLISH", fmt.Sprint("c", i), "not heard")
		s.Do(t, "PUBLISH", fmt.Sprint("c", i), "m")
		e.untilMessages(t, 1)
	}
	require.False(t, h.Sharded())
}

// clusterVia returns a cluster client to a server that is only reached by a proxy.
func clusterVia(t *testing.T) (*redistest.Server, *redistest.Proxy, rueidis.Client) {
	s := redistest.Run(t, redistest.Options{Cluster: true})
	p := redistest.NewProxy(t, s.Addr())
	_, port, err := net.SplitHostPort(p.Addr())
	require.NoError(t, err)
	s.Do(t, "CONFIG", "SET", "cluster-announce-port", port)
	redistest.Eventually(t, patience, "announced", func() bool {
		return strings.Contains(s.Do(t, "CLUSTER", "SLOTS"), " "+port+" ")
	})
	c := s.Client(t, via(p))
	return s, p, c
}

func TestAutoBeforeSharded(t *testing.T) {
	t.Parallel()
	s, p, c := clusterVia(t)
	p.Answer("PUBSUB SHARDNUMSUB", "-ERR Unknown subcommand or wrong number of arguments for 'SHARDNUMSUB'. Try PUBSUB HELP.\r\n", -1)
	h := newHub(t, c, pubsub.Options{Poll: noPoll})
	e := newEar()
	h.Subscribe("c", e.notify)
	e.untilLooks(t, 1)
	require.Equal(t, pubsub.Publish, h.Publisher(t.Context()))
	require.False(t, h.Sharded())
	s.Do(t, "PUBLISH", "c", "m")
	e.untilMessages(t, 1)
}

func TestAutoUndecided(t *testing.T) {
	t.Parallel()
	s, p, c := clusterVia(t)
	p.Answer("PUBSUB SHARDNUMSUB", "-LOADING Redis is loading the dataset in memory\r\n", 3)
	var log errorLog
	h := newHub(t, c, pubsub.Options{Poll: 20 * time.Millisecond, Report: log.report})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Equal(t, pubsub.Both, h.Publisher(ctx))
	p.BlackHole()
	require.Equal(t, pubsub.Both, h.Publisher(ctx))
	p.Pass()
	require.True(t, h.Sharded())
	e := newEar()
	h.Subscribe("c", e.notify)
	redistest.Eventually(t, patience, "subscribed", func() bool {
		return s.Do(t, "PUBSUB", "SHARDCHANNELS") == "c"
	})
	require.NotEmpty(t, log.all())
	require.Equal(t, pubsub.Sharded, h.Publisher(t.Context()))
	s.Do(t, "SPUBLISH", "c", "m")
	e.untilMessages(t, 1)
}

// twoNodes starts a cluster of two nodes, each of which owns half of the slots.
func twoNodes(t *testing.T) (nodes [2]*redistest.Server, ids [2]string) {
	for i := range nodes {
		nodes[i] = startNode(t)
		ids[i] = nodes[i].Do(t, "CLUSTER", "MYID")
	}
	nodes[0].Do(t, "CLUSTER", "ADDSLOTSRANGE", "0", "8191")
	nodes[1].Do(t, "CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
	nodes[1].Do(t, "CLUSTER", "SET-CONFIG-EPOCH", "2")
	nodes[0].Do(t, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(nodes[1].Port()))
	for _, n := range nodes {
		redistest.Eventually(t, patience, "cluster is up", func() bool {
			info := n.Do(t, "CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384")
		})
	}
	return nodes, ids
}

// startNode starts a node without slots. The ports that it is to have may be taken
// between finding them free and binding them.
func startNode(t *testing.T) (s *redistest.Server) {
	var err error
	for range 5 {
		s, err = redistest.Start(redistest.Options{Port: clusterPort(t), Args: []string{
			"--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-node-timeout", "2000",
		}})
		if err == nil {
			t.Cleanup(s.Stop)
			return s
		}
	}
	require.NoError(t, err)
	return nil
}

func ofCluster(o *rueidis.ClientOption) { o.ForceSingleClient = false }

// clusterPort returns a free port whose cluster bus port is free as well.
func clusterPort(t *testing.T) int {
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+10000))); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func TestSlotsOfTwoNodes(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, proto func(*rueidis.ClientOption)) {
		nodes, ids := twoNodes(t)
		c := nodes[0].Client(t, proto, ofCluster)
		var log errorLog
		h := newHub(t, c, pubsub.Options{Poll: noPoll, Report: log.report})
		const n = 100
		ears := make([]*ear, n)
		publish := func(i, want int) {
			t.Helper()
			name := fmt.Sprint("c", i)
			require.NoError(t, c.Do(t.Context(), c.B().Spublish().Channel(name).Message("m").Build()).Error())
			ears[i].untilMessages(t, want)
		}
		for i := range ears {
			ears[i] = newEar()
			h.Subscribe(fmt.Sprint("c", i), ears[i].notify)
		}
		for i, e := range ears {
			e.untilLooks(t, 1)
			publish(i, 1)
		}
		require.NotEmpty(t, nodes[0].Channels(t))
		require.NotEmpty(t, nodes[1].Channels(t))
		require.Len(t, append(nodes[0].Channels(t), nodes[1].Channels(t)...), n)
		for _, node := range nodes {
			require.Equal(t, 1, strings.Count(node.Do(t, "CLIENT", "LIST", "TYPE", "pubsub"), " name="))
		}

		// The slot of one channel moves.
		slot := nodes[0].Do(t, "CLUSTER", "KEYSLOT", "c7")
		from, to := 0, 1
		if number, err := strconv.Atoi(slot); err != nil || number > 8191 {
			from, to = 1, 0
		}
		looks, _ := ears[7].counts()
		nodes[to].Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from])
		nodes[from].Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
		nodes[to].Do(t, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
		nodes[from].Do(t, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
		ears[7].untilLooks(t, looks+1)
		publish(7, 2)
		for i := range ears {
			if i != 7 {
				publish(i, 2)
			}
		}
		require.Empty(t, log.all())
	})
}

// A node is gone for a while. The others name it as the owner all the time.
func TestDeadNode(t *testing.T) {
	t.Parallel()
	nodes, _ := twoNodes(t)
	c := nodes[0].Client(t, ofCluster)
	var log errorLog
	h := newHub(t, c, pubsub.Options{Family: pubsub.Both, Poll: 20 * time.Millisecond, Linger: time.Millisecond, Report: log.report})
	const n = 20
	ears := make([]*ear, n)
	for i := range ears {
		ears[i] = newEar()
		h.Subscribe(fmt.Sprint("c", i), ears[i].notify)
	}
	confirmed := func() bool {
		for i := range n {
			if !hears(h, i) {
				return false
			}
		}
		return true
	}
	redistest.Eventually(t, patience, "confirmed", confirmed)
	var lost [n]bool
	for _, name := range strings.Fields(nodes[0].Do(t, "PUBSUB", "SHARDCHANNELS")) {
		i, err := strconv.Atoi(strings.TrimPrefix(name, "c"))
		require.NoError(t, err)
		lost[i] = true
	}
	before := nodes[1].Calls(t)
	nodes[0].Kill()
	for i, e := range ears {
		if lost[i] {
			looks, _ := e.counts()
			e.untilLooks(t, looks+10)
			require.False(t, hears(h, i))
		}
	}
	require.Less(t, len(log.all()), 100)
	require.Less(t, nodes[1].Calls(t).Since(before).Of("ssubscribe"), int64(200))
	require.NoError(t, nodes[0].Restart())
	redistest.Eventually(t, patience, "confirmed", confirmed)
	for i, e := range ears {
		_, messages := e.counts()
		// The client may still have a connection to the node that was killed.
		redistest.Eventually(t, patience, "published", func() bool {
			return c.Do(t.Context(), c.B().Spublish().Channel(fmt.Sprint("c", i)).Message("m").Build()).Error() == nil
		})
		e.untilMessages(t, messages+1)
	}
}

func hears(h *pubsub.Hub, i int) bool {
	stop, ok := h.Join(fmt.Sprint("c", i), func(pubsub.Signal) {})
	stop()
	return ok
}

// Time only passes when everything waits, so a hub that needs anything but time
// and channels, or does anything in a hot loop, hangs here.
func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := server.NewServerConn()
		var subscribed atomic.Int64
		require.NoError(t, srv.Register("SUBSCRIBE", func(p *server.Peer, _ string, args []string) {
			subscribed.Add(1)
			for _, name := range args {
				p.WriteLen(3)
				p.WriteBulk("subscribe")
				p.WriteBulk(name)
				p.WriteInt(1)
			}
		}))
		require.NoError(t, srv.Register("UNSUBSCRIBE", func(p *server.Peer, _ string, args []string) {
			for _, name := range args {
				p.WriteLen(3)
				p.WriteBulk("unsubscribe")
				p.WriteBulk(name)
				p.WriteInt(0)
			}
		}))
		require.NoError(t, srv.Register("PING", func(p *server.Peer, _ string, _ []string) { p.WriteInline("PONG") }))
		var down atomic.Bool
		c, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{"bubble:1"}, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: true,
			ClientSetInfo: rueidis.DisableClientSetInfo,
			DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
				if down.Load() {
					return nil, net.ErrClosed
				}
				client, peer := net.Pipe()
				srv.ServeConn(peer)
				return client, nil
			},
		})
		require.NoError(t, err)
		h := pubsub.New(c, pubsub.Options{Poll: 100 * time.Millisecond, Linger: time.Second})
		e := newEar()
		down.Store(true)
		h.Subscribe("c", e.notify)
		time.Sleep(10*time.Second + 50*time.Millisecond)
		synctest.Wait()
		looks, _ := e.counts()
		require.InDelta(t, 100, looks, 20)
		down.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		before, _ := e.counts()
		time.Sleep(time.Hour)
		synctest.Wait()
		after, _ := e.counts()
		require.Equal(t, before, after)
		require.EqualValues(t, 1, subscribed.Load())
		h.Close(t.Context())
		c.Close()
		srv.Close()
	})
}
