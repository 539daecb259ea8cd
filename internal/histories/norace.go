//go:build !race

package histories

// share is the part of the histories that run: all.
const share = 1
