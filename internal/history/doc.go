// Package history records what the callers of locks saw, in one process or in
// many, and checks it: that all of it can be put into one order in which the lock
// behaved as its [Model] says, each operation at a moment between its call and its
// return (linearizability); by a second, much simpler way, that the times in which
// holds were live do not overlap ([Oracle]); and against the server's own record
// of its keys ([Record]).
//
// A lock kind gets a model in a file of its own, such as [Mutex]; the recorder,
// the checks and the oracle are the same for all of them.
//
// Only tests import it.
package history
