package demo

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
)

// Line is a line of the input: an order, or what was meant to be one.
type Line struct {
	No   int // in the file, from 1
	Text []byte
}

// Input is the file of orders.
type Input struct {
	Name  string
	Lines []Line // those that are not empty
	Hash  string // of the lines: tells this input from others
}

// ReadInput reads the first limit lines of the file that are not empty; all when limit is 0.
func ReadInput(name string, limit int) (*Input, error) {
	all, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the orders: %w", err)
	}
	in := &Input{Name: name}
	hash := sha256.New()
	no := 0
	for text := range bytes.Lines(all) {
		if no++; limit > 0 && len(in.Lines) == limit {
			break
		}
		if text = bytes.TrimRight(text, "\r\n"); len(bytes.TrimSpace(text)) > 0 {
			in.Lines = append(in.Lines, Line{No: no, Text: text})
			fmt.Fprintf(hash, "%d %s\n", no, text)
		}
	}
	if len(in.Lines) == 0 {
		return nil, fmt.Errorf("read the orders: %s has no lines", name)
	}
	in.Hash = hex.EncodeToString(hash.Sum(nil)[:8])
	return in, nil
}

// order reads a line as the sales endpoint does.
func (l Line) order() (*Order, error) {
	var o Order
	if err := json.Unmarshal(l.Text, &o); err != nil {
		return nil, err
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &o, nil
}

// malformed are the lines that sales cannot accept, with the reason.
func (in *Input) malformed() []string {
	var found []string
	for _, l := range in.Lines {
		if _, err := l.order(); err != nil {
			found = append(found, fmt.Sprintf("line %d: %s", l.No, oneLine(err)))
		}
	}
	return found
}

// oneLine is the text of an error that may be several joined ones.
func oneLine(err error) string {
	return string(bytes.ReplaceAll([]byte(err.Error()), []byte("\n"), []byte("; ")))
}
