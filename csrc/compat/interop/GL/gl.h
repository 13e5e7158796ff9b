/* SPDX-License-Identifier: BSD-3-Clause */
/* The OpenGL types that cudaGL.h names, so that the driver's table is made without OpenGL's headers. */
#ifndef GPUSHARE_COMPAT_GL_H
#define GPUSHARE_COMPAT_GL_H

typedef unsigned int GLenum;
typedef unsigned int GLuint;

#endif
