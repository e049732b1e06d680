"""A project's URLs that include this package's."""

from django.urls import include, path

urlpatterns = [path("singlecron/", include("django_singlecron.urls"))]
