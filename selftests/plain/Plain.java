// SPDX-License-Identifier: GPL-2.0

import java.io.DataInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;

/** What plain.c says, in Java. */
public final class Plain {
    private static final int TOTAL = 300000;

    private Plain() {
    }

    private static void serve(String host, int port) throws IOException {
        try (ServerSocket listener = new ServerSocket(port, 1, InetAddress.getByName(host))) {
            System.out.println("ready");
            try (Socket conn = listener.accept()) {
                conn.getInputStream().transferTo(conn.getOutputStream());
            }
        }
    }

    private static void talk(String host, int port) throws Exception {
        byte[] sent = new byte[TOTAL];
        for (int i = 0; i < TOTAL; i++) {
            sent[i] = (byte) (i * 31 + i / 251);
        }
        try (Socket conn = new Socket(host, port)) {
            Thread writer = new Thread(() -> {
                try {
                    conn.getOutputStream().write(sent);
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            });
            writer.start();
            byte[] got = new byte[TOTAL];
            new DataInputStream(conn.getInputStream()).readFully(got);
            writer.join();
            if (!Arrays.equals(sent, got)) {
                throw new IllegalStateException("the echo differs");
            }
            System.out.println("same");
            System.in.transferTo(System.err);
        }
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("serve")) {
            serve(args[1], Integer.parseInt(args[2]));
        } else {
            talk(args[1], Integer.parseInt(args[2]));
        }
    }
}
