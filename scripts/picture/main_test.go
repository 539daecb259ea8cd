package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The pictures in docs are those that the program draws.
func TestThePicturesAreDrawnByThisProgram(t *testing.T) {
	const root = "../.."
	files, err := draw(root)
	if err != nil {
		t.Fatal(err)
	}
	drawn, err := filepath.Glob(filepath.Join(root, "docs", "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if len(drawn) != len(files) {
		t.Errorf("docs has the pictures %v, want %d", drawn, len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s is another picture: run go run ./scripts/picture", name)
		}
	}
}
