//go:build race

package histories

// share is the part of the histories that run: the race detector makes each several times slower,
// and finds the races in a few.
const share = 4
