package fence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// everywhere runs a test on the real server and on miniredis.
func everywhere(t *testing.T, test func(t *testing.T, c rueidis.Client)) {
	t.Helper()
	t.Run("server", func(t *testing.T) { test(t, client) })
	t.Run("miniredis", func(t *testing.T) { test(t, simulated) })
}

func do(t *testing.T, c rueidis.Client, words ...string) string {
	t.Helper()
	v, err := c.Do(t.Context(), c.B().Arbitrary(words...).Build()).ToAny()
	if rueidis.IsRedisNil(err) {
		return ""
	}
	require.NoError(t, err)
	return fmt.Sprint(v)
}

func TestKey_namesTheResource(t *testing.T) {
	require.Equal(t, "holdfast_fence:{account}", fence.Key("account"))
	require.Equal(t, "holdfast_fence:account:{4711}", fence.Key("account:{4711}"))
}

// Each step is a write with a token; "" is a write that passes.
func TestSet(t *testing.T) {
	type step struct {
		token uint64
		stale string
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"equal tokens pass: one hold writes more than once", []step{{33, ""}, {33, ""}, {33, ""}}},
		{"newer tokens pass", []step{{33, ""}, {34, ""}, {100, ""}}},
		{"older tokens do not, ever after", []step{{33, ""}, {34, ""}, {33, "token 33 is older than 34"}, {34, ""}, {1, "token 1 is older than 34"}, {35, ""}}},
		{"0 never passes", []step{{0, "0 is never a token"}, {1, ""}, {0, "0 is never a token"}}},
		{"1 is a token", []step{{1, ""}, {2, ""}, {1, "token 1 is older than 2"}}},
		{"longer is larger", []step{{9, ""}, {10, ""}, {9, "token 9 is older than 10"}, {99, ""}, {100, ""}}},
		{"tokens of the server's time", []step{{1796069981018966, ""}, {1796069981018965, "is older"}, {1796069981018967, ""}}},
		{"tokens above 2^53 compare exactly", []step{{1<<53 + 1, ""}, {1 << 53, "is older"}, {1<<53 + 2, ""}, {1<<53 + 1, "is older"}}},
		{"tokens up to 2^64-1 compare exactly", []step{
			{math.MaxInt64, ""},
			{math.MaxInt64 + 1, ""},
			{math.MaxInt64, "is older"},
			{math.MaxUint64 - 1, ""},
			{math.MaxUint64, ""},
			{math.MaxUint64 - 1, "token 18446744073709551614 is older than 18446744073709551615"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, c2 rueidis.Client) {
				key, value, newest := name(t), "", ""
				for i, s := range c.steps {
					written := fmt.Sprint("value ", i)
					err := fence.Set(t.Context(), c2, key, s.token, written)
					if s.stale == "" {
						require.NoError(t, err, "step %d", i)
						value, newest = written, strconv.FormatUint(s.token, 10)
					} else {
						require.ErrorIs(t, err, fence.ErrStaleToken, "step %d", i)
						require.ErrorIs(t, err, holdfast.ErrLost, "step %d", i)
						require.ErrorContains(t, err, s.stale)
					}
					require.Equal(t, value, do(t, c2, "GET", key), "step %d", i)
					require.Equal(t, newest, do(t, c2, "GET", fence.Key(key)), "step %d", i)
				}
			})
		})
	}
}

func TestSet_removesTheTTLAsSETDoesAndTheFenceHasNone(t *testing.T) {
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		key := name(t)
		do(t, c, "SET", key, "old", "PX", "60000")
		require.NoError(t, fence.Set(t.Context(), c, key, 33, "new"))
		require.Equal(t, "-1", do(t, c, "PTTL", key))
		require.Equal(t, "-1", do(t, c, "PTTL", fence.Key(key)))
	})
}

func TestSet_anyBytes(t *testing.T) {
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		for i, value := range []string{"", "\x00\xff\r\n", strings.Repeat("x", 1<<20)} {
			require.NoError(t, fence.Set(t.Context(), c, name(t), uint64(i+1), value))
			require.Equal(t, value, do(t, c, "GET", name(t)))
		}
	})
}

func TestSet_isOneRoundTrip(t *testing.T) {
	require.NoError(t, fence.Set(t.Context(), client, name(t), 33, "a"))
	before := server.Calls(t)
	require.NoError(t, fence.Set(t.Context(), client, name(t), 34, "b"))
	since := server.Calls(t).Since(before)
	require.EqualValues(t, 1, since.Scripts())
	require.EqualValues(t, 1, since.Of("get"))
	require.EqualValues(t, 2, since.Of("set"), "the fence and the value")
}

func TestSet_zeroAsksNobody(t *testing.T) {
	before := server.Calls(t)
	err := fence.Set(t.Context(), client, name(t), 0, "a")
	require.ErrorIs(t, err, fence.ErrStaleToken)
	require.ErrorIs(t, err, holdfast.ErrLost)
	require.ErrorContains(t, err, "Options.Fencing", "it says what is wrong")
	require.ErrorContains(t, err, "the lease is over", "it says what else may be")
	require.Zero(t, server.Calls(t).Since(before).Scripts())
}

func TestSet_aFenceOfAWrongTypeWritesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		do(t, c, "RPUSH", fence.Key(name(t)), "a")
		err := fence.Set(t.Context(), c, name(t), 33, "a")
		require.ErrorContains(t, err, "WRONGTYPE")
		require.NotErrorIs(t, err, holdfast.ErrLost)
		require.Equal(t, "0", do(t, c, "EXISTS", name(t)))
	})
}

func TestSet_theClientsErrorComesBack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, fence.Set(ctx, client, name(t), 33, "a"), context.Canceled)
	require.Empty(t, do(t, client, "GET", name(t)))
}

// A write whose reply was lost may be sent again with the same token.
func TestSet_aLostReplyIsNotRepeatedAndMayBe(t *testing.T) {
	p := redistest.NewProxy(t, server.Addr())
	c := server.Client(t, func(o *rueidis.ClientOption) { o.InitAddress = []string{p.Addr()} })
	require.NoError(t, fence.Set(t.Context(), c, name(t), 33, "a"))
	trap := p.DropReply("EVALSHA", 1)
	before := server.Calls(t)
	err := fence.Set(t.Context(), c, name(t), 33, "b")
	require.Error(t, err)
	require.NotErrorIs(t, err, holdfast.ErrLost)
	<-trap.Done()
	require.EqualValues(t, 1, server.Calls(t).Since(before).Scripts())
	require.NoError(t, fence.Set(t.Context(), c, name(t), 33, "b"))
	require.Equal(t, "b", do(t, client, "GET", name(t)))
}

// Whatever the order in which they arrive, the newest token writes last.
func TestSet_theNewestOfManyAtOnceWins(t *testing.T) {
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		const n = 200
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				token := uint64(i + 1)
				err := fence.Set(t.Context(), c, name(t), token, strconv.FormatUint(token, 10))
				if err != nil && (!errors.Is(err, fence.ErrStaleToken) || token == n) {
					t.Errorf("%d: %v", token, err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, strconv.Itoa(n), do(t, c, "GET", name(t)))
		require.Equal(t, strconv.Itoa(n), do(t, c, "GET", fence.Key(name(t))))
	})
}

func TestExec_bodySeesItsOwnKeysAndArguments(t *testing.T) {
	s := fence.NewScript("return { #KEYS, KEYS[1] or '', KEYS[2] or '', #ARGV, ARGV[1] or '', ARGV[2] or '' }")
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		for _, list := range [][]string{nil, {"a"}, {"a", "b"}} {
			want := append(append([]string(nil), list...), "", "")
			reply, err := s.Exec(t.Context(), c, name(t), 33, list, list)
			require.NoError(t, err)
			got, err := reply.ToAny()
			require.NoError(t, err)
			n := int64(len(list))
			require.Equal(t, []any{n, want[0], want[1], n, want[0], want[1]}, got)
		}
	})
}

func TestExec_leavesTheCallersSlicesAlone(t *testing.T) {
	s := fence.NewScript("return 1")
	keys, args := make([]string, 1, 8), make([]string, 1, 8)
	keys[0], args[0] = "k", "a"
	_, err := s.Exec(t.Context(), client, name(t), 33, keys, args)
	require.NoError(t, err)
	require.Equal(t, []string{"k", "", ""}, keys[:3])
	require.Equal(t, []string{"a", "", ""}, args[:3])
}

func TestExec_aStaleTokenRunsNothing(t *testing.T) {
	s := fence.NewScript("return redis.call('INCR', KEYS[1])")
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		for _, run := range []struct {
			token uint64
			want  int64 // 0: stale
		}{{0, 0}, {34, 1}, {33, 0}, {34, 2}, {35, 3}, {34, 0}, {0, 0}} {
			reply, err := s.Exec(t.Context(), c, name(t), run.token, []string{name(t)}, nil)
			if run.want == 0 {
				require.ErrorIs(t, err, fence.ErrStaleToken)
				require.ErrorIs(t, err, holdfast.ErrLost)
				continue
			}
			require.NoError(t, err)
			n, err := reply.AsInt64()
			require.NoError(t, err)
			require.Equal(t, run.want, n)
		}
		require.Equal(t, "3", do(t, c, "GET", name(t)))
	})
}

func TestExec_replyAndErrorsOfTheBodyComeBack(t *testing.T) {
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		exec := func(body string) (rueidis.RedisMessage, error) {
			return fence.NewScript(body).Exec(t.Context(), c, name(t), 33, []string{name(t)}, nil)
		}
		reply, err := exec("return 'text'")
		require.NoError(t, err)
		text, err := reply.ToString()
		require.NoError(t, err)
		require.Equal(t, "text", text)

		_, err = exec("redis.call('SET', KEYS[1], 'a')")
		require.True(t, rueidis.IsRedisNil(err), "a body that returns nothing: %v", err)

		_, err = exec("return redis.error_reply('BROKE no money')")
		require.ErrorContains(t, err, "BROKE no money")
		require.NotErrorIs(t, err, holdfast.ErrLost)

		_, err = exec("return redis.call('INCR', KEYS[1])")
		require.ErrorContains(t, err, "not an integer")
		require.NotErrorIs(t, err, holdfast.ErrLost)
	})
}

// The newest token is kept beside the resource, which itself is not touched.
func TestExec_theFenceIsTheKeyOfTheResource(t *testing.T) {
	s := fence.NewScript("return redis.call('SET', KEYS[1], ARGV[1])")
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		for _, resource := range []string{name(t), name(t) + ":{4711}"} {
			written := resource + ":written"
			exec := func(token uint64, value string) error {
				_, err := s.Exec(t.Context(), c, resource, token, []string{written}, []string{value})
				return err
			}
			require.NoError(t, exec(34, "a"))
			require.Equal(t, "34", do(t, c, "GET", fence.Key(resource)))
			require.Equal(t, "0", do(t, c, "EXISTS", resource))
			require.Equal(t, "a", do(t, c, "GET", written))

			// Set of the same name has the same fence.
			require.ErrorIs(t, fence.Set(t.Context(), c, resource, 33, "b"), fence.ErrStaleToken)
			require.NoError(t, fence.Set(t.Context(), c, resource, 35, "b"))
			require.ErrorIs(t, exec(34, "c"), fence.ErrStaleToken)
			require.Equal(t, "a", do(t, c, "GET", written))
		}
	})
}

// Names whose fence could lie in another slot are refused in every mode, and
// nobody is asked.
func TestExec_badNames(t *testing.T) {
	s := fence.NewScript("return redis.call('SET', KEYS[1], 'a')")
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		for _, bad := range []string{"", "a}b", "a{b", "a{}b", "}a{b}", "{}", strings.Repeat("x", 513)} {
			written := name(t) + ":written"
			before := server.Calls(t)
			_, err := s.Exec(t.Context(), c, bad, 33, []string{written}, nil)
			for _, err := range []error{err, fence.Set(t.Context(), c, bad, 33, "a")} {
				require.ErrorIs(t, err, holdfast.ErrName, "%q", bad)
				require.NotErrorIs(t, err, holdfast.ErrLost, "%q", bad)
				require.ErrorContains(t, err, "fence: ")
			}
			require.Zero(t, server.Calls(t).Since(before).Scripts(), "%q", bad)
			for _, key := range []string{bad, written, fence.Key(bad)} {
				require.Equal(t, "0", do(t, c, "EXISTS", key), "%q", key)
			}
		}
	})
}

// The two fences of two resources know nothing of each other.
func TestExec_fencesAreApart(t *testing.T) {
	s := fence.NewScript("return 1")
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		for _, resource := range []string{"a", "b"} {
			_, err := s.Exec(t.Context(), c, name(t)+resource, 34, nil, nil)
			require.NoError(t, err)
		}
		_, err := s.Exec(t.Context(), c, name(t)+"a", 35, nil, nil)
		require.NoError(t, err)
		_, err = s.Exec(t.Context(), c, name(t)+"b", 34, nil, nil)
		require.NoError(t, err)
	})
}

func TestExec_afterScriptFlush(t *testing.T) {
	s := fence.NewScript("return redis.call('INCR', KEYS[1])")
	everywhere(t, func(t *testing.T, c rueidis.Client) {
		for i := range 3 {
			do(t, c, "SCRIPT", "FLUSH")
			reply, err := s.Exec(t.Context(), c, name(t), 33, []string{name(t)}, nil)
			require.NoError(t, err)
			n, err := reply.AsInt64()
			require.NoError(t, err)
			require.EqualValues(t, i+1, n)
		}
	})
}

func TestSet_inACluster(t *testing.T) {
	s := redistest.Run(t, redistest.Options{Cluster: true})
	c := s.Client(t)
	for i := range 20 {
		for _, key := range []string{fmt.Sprint("account", i), fmt.Sprintf("account:{%d}:balance", i)} {
			require.NoError(t, fence.Set(t.Context(), c, key, 34, "b"))
			require.ErrorIs(t, fence.Set(t.Context(), c, key, 33, "a"), fence.ErrStaleToken)
			require.Equal(t, s.Do(t, "CLUSTER", "KEYSLOT", key), s.Do(t, "CLUSTER", "KEYSLOT", fence.Key(key)))
		}
	}

	// No key can have its fence beside it if its braces are such that no other
	// key shares its slot. Such a key is to be refused; a panic is no answer.
	for _, key := range []string{"a}b", "a{b", "a{}b"} {
		t.Run(key, func(t *testing.T) {
			require.NotPanics(t, func() {
				require.ErrorIs(t, fence.Set(t.Context(), c, key, 33, "a"), holdfast.ErrName)
			})
			require.Empty(t, s.Do(t, "GET", key))
			require.Empty(t, s.Do(t, "GET", fence.Key(key)))
		})
	}
}
