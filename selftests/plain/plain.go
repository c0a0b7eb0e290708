// SPDX-License-Identifier: GPL-2.0

// What plain.c says, in Go.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"os"
)

const total = 300000

func serve(address string) {
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	conn, err := listener.Accept()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := io.Copy(conn, struct{ io.Reader }{conn}); err != nil {
		log.Fatal(err)
	}
	conn.Close()
}

func talk(address string) {
	conn, err := net.Dial("tcp4", address)
	if err != nil {
		log.Fatal(err)
	}
	sent := make([]byte, total)
	for i := range sent {
		sent[i] = byte(i*31 + i/251)
	}
	go func() {
		if _, err := conn.Write(sent); err != nil {
			log.Fatal(err)
		}
	}()
	got := make([]byte, total)
	if _, err := io.ReadFull(conn, got); err != nil {
		log.Fatal(err)
	}
	if !bytes.Equal(sent, got) {
		log.Fatal("the echo differs")
	}
	fmt.Println("same")
	io.Copy(io.Discard, os.Stdin)
	conn.Close()
}

func main() {
	address := net.JoinHostPort(os.Args[2], os.Args[3])
	if os.Args[1] == "serve" {
		serve(address)
	} else {
		talk(address)
	}
}
